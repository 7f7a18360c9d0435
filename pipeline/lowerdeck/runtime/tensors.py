"""Tensors of a program as torch tensors: element types, layouts, and memory shared as in the memory plan."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from lowerdeck.formats.pte import DTYPE_NAMES, DYNAMIC_BOUND, STATIC, Method, TensorSpec

DTYPES: dict[int, torch.dtype] = {number: getattr(torch, name) for number, name in DTYPE_NAMES.items()}
"""torch dtype by the schema's ScalarType; torch has no others."""


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
    """One tensor for every tensor value of `method`, None for the other values.

    Tensors share memory where the memory plan lets them: planned tensors are views into their arena, so operators in
    place, elided views and reused memory behave as they do in ExecuTorch's runtime. Constants are copies.

    Raises:
        ValueError: a tensor cannot be expressed in torch.
        RuntimeError: the host lacks the memory.
    """
    # Zeros instead of uninitialized memory keep results reproducible even for a program that reads too early.
    arenas = [torch.zeros(size, dtype=torch.uint8) for size in method.arena_bytes]
    tensors: list[torch.Tensor | None] = []
    for spec in method.values:
        if not isinstance(spec, TensorSpec):
            tensors.append(None)
            continue
        dtype = dtype_of(spec)
        if spec.memory is not None:
            arena, offset = spec.memory
            flat = _typed(arenas[arena][offset : offset + spec.size_bytes], dtype)
        else:
            flat = torch.zeros(math.prod(spec.sizes), dtype=dtype)
        tensor = flat.as_strided(spec.sizes, strides_of(spec.sizes, spec.dim_order))
        if spec.data is not None:
            tensor.copy_(initial_value(spec))
        tensors.append(tensor)
    return tensors


def initial_value(spec: TensorSpec) -> torch.Tensor:
    """The content that the program stores for a tensor."""
    assert spec.data is not None, "only constants and state have stored content"
    dtype = dtype_of(spec)
    stored = bytearray(spec.data)
    flat = torch.frombuffer(stored, dtype=dtype) if stored else torch.zeros(0, dtype=dtype)
    return flat.as_strided(spec.sizes, strides_of(spec.sizes, spec.dim_order))


def _typed(flat: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if flat.storage_offset() % dtype.itemsize:
        raise ValueError(f"a tensor of {dtype} is planned at {flat.storage_offset()}, not aligned to its elements")
    return flat.view(dtype)
