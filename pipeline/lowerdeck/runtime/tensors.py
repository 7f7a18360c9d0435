"""Tensors of a program as torch tensors: element types, layouts, and memory shared as in the memory plan."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from lowerdeck.formats.pte import DTYPE_NAMES, DYNAMIC_BOUND, STATIC, Method, TensorSpec

DTYPES: dict[int, torch.dtype] = {number: getattr(torch, name) for number, name in DTYPE_NAMES.items()}
"""torch dtype by the schema's ScalarType; torch has no others."""

_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
_ALIGNMENT = 16
"""Bytes to which the arenas of samples are rounded: a multiple of every element's size."""


def dtype_of(spec: TensorSpec) -> torch.dtype:
    """Element type of a tensor.

    Raises:
        ValueError: torch has no such element type.
    """
    return dtype_numbered(spec.scalar_type)


def dtype_numbered(scalar_type: int) -> torch.dtype:
    """The element type with this number in the schema.

    Raises:
        ValueError: torch has no such element type.
    """
    if scalar_type not in DTYPES:
        raise ValueError(f"a tensor has element type {scalar_type}, which the host runtime does not have")
    return DTYPES[scalar_type]


def strides_of(shape: Sequence[int], dim_order: Sequence[int]) -> tuple[int, ...]:
    """Strides in elements of a dense tensor of `shape` whose dimensions are stored in the order `dim_order`."""
    strides, step = [0] * len(shape), 1
    for dim in reversed(dim_order):
        strides[dim] = step
        step *= max(shape[dim], 1)
    return tuple(strides)


def resize(tensor: torch.Tensor, spec: TensorSpec, shape: Sequence[int]) -> None:
    """Change the shape of `tensor` in place, for all references to it; its content is lost.

    Raises:
        ValueError: `spec` does not allow the shape.
    """
    within = len(shape) == len(spec.sizes) and all(map(int.__le__, shape, spec.sizes))
    if spec.dynamism == STATIC or (spec.dynamism == DYNAMIC_BOUND and not within):
        bound = "is" if spec.dynamism == STATIC else "is bounded by"
        raise ValueError(f"a result has shape {list(shape)} where the program's tensor {bound} {list(spec.sizes)}")
    if len(shape) != len(spec.dim_order):
        raise ValueError(f"a result has {len(shape)} dimensions where the program's tensor has {len(spec.dim_order)}")
    strides = strides_of(shape, spec.dim_order)
    if within:
        tensor.as_strided_(shape, strides)
    else:
        storage = torch.zeros(math.prod(shape), dtype=tensor.dtype).untyped_storage()
        tensor.set_(storage, 0, tuple(shape), strides)


def allocate(method: Method) -> list[torch.Tensor | None]:
    """One tensor for every tensor value of `method`, None for the other values; see `allocate_batch`."""
    return [None if tensor is None else tensor[0] for tensor in allocate_batch(method, 1)]


def allocate_batch(method: Method, batch: int) -> list[torch.Tensor | None]:
    """One tensor [batch x sizes] for every tensor value of `method`, None for the other values.

    Tensors share memory where the memory plan lets them: planned tensors are views into the arena of each sample, so
    operators in place, elided views and reused memory behave as they do in ExecuTorch's runtime. Constants and state
    are copies, which the samples share.

    Raises:
        ValueError: a tensor cannot be expressed in torch.
        RuntimeError: the host lacks the memory.
    """
    # Zeros instead of uninitialized memory keep results reproducible even for a program that reads too early.
    arenas = [
        torch.zeros((batch, -(-size // _ALIGNMENT) * _ALIGNMENT), dtype=torch.uint8) for size in method.arena_bytes
    ]
    tensors: list[torch.Tensor | None] = []
    for spec in method.values:
        if not isinstance(spec, TensorSpec):
            tensors.append(None)
            continue
        dtype, strides = dtype_of(spec), strides_of(spec.sizes, spec.dim_order)
        if spec.memory is not None:
            arena, offset = spec.memory
            flat = _typed(arenas[arena], dtype, offset)
            position = offset // dtype.itemsize
            planned = flat.as_strided((batch, *spec.sizes), (flat.shape[1], *strides), position)
            tensors.append(planned if spec.data is None else planned.copy_(initial_value(spec)))
        elif spec.data is not None:
            stored = torch.zeros(math.prod(spec.sizes), dtype=dtype).as_strided(spec.sizes, strides)
            tensors.append(stored.copy_(initial_value(spec)).expand(batch, *spec.sizes))
        else:
            size = math.prod(spec.sizes)
            tensors.append(torch.zeros(batch * size, dtype=dtype).as_strided((batch, *spec.sizes), (size, *strides)))
    return tensors


def initial_value(spec: TensorSpec) -> torch.Tensor:
    """The content that the program stores for a tensor."""
    assert spec.data is not None, "only constants and state have stored content"
    dtype = dtype_of(spec)
    stored = bytearray(spec.data)
    flat = torch.frombuffer(stored, dtype=dtype) if stored else torch.zeros(0, dtype=dtype)
    return flat.as_strided(spec.sizes, strides_of(spec.sizes, spec.dim_order))


def same_bits(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether two tensors are of one type and shape and have the same bits; 0.0 and -0.0 have not."""
    if (first.dtype, first.shape) != (second.dtype, second.shape):
        return False
    bits = _INTEGERS.get(first.element_size(), torch.uint8)
    return torch.equal(*(each.contiguous().reshape(-1).view(bits) for each in (first, second)))


def _typed(arena: torch.Tensor, dtype: torch.dtype, offset: int) -> torch.Tensor:
    """The bytes of `arena` [batch x bytes] as elements."""
    if offset % dtype.itemsize:
        raise ValueError(f"a tensor of {dtype} is planned at {offset}, not aligned to its elements")
    return arena.view(dtype)
