"""Operators of a program as torch functions.

A `.pte` calls out variants (`aten::add.out`). Here the functional variant (`aten::add.Tensor`) computes the result,
which is then copied into the program's tensor: its memory layout may differ from torch's choice, and it may share
memory with an input, as planned for a device that computes element by element.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lowerdeck.contracts.runtime_images import SINGLE_ROUNDING
from lowerdeck.runtime import cmsis_nn
from lowerdeck.runtime.tensors import dtype_numbered

_TENSOR_OPTIONS = frozenset({"dtype", "layout", "device", "pin_memory"})


@dataclass(frozen=True, slots=True)
class Kernel:
    """How to compute one operator."""

    function: Callable[..., Any]
    num_arguments: int
    """Number of arguments that the program passes, without results."""
    keywords: tuple[str | None, ...]
    """The name of each argument that `function` takes by keyword, None for positional ones."""
    outputs: tuple[int, ...]
    """Positions of outputs, which `function` does not take; empty where it returns a value or works in place."""
    mutated: tuple[int, ...]
    """Positions of arguments that `function` writes to."""
    makes_dtype: bool = False
    """Whether `function` takes the output's element type by the keyword `dtype`."""
    casts: bool = False
    """Whether the result is cast to the output's element type."""


def resolve(name: str, definitions: Sequence[str] = ()) -> Kernel:
    """The kernel of an operator, e.g. `aten::add.out`.

    Args:
        name: Its name in programs.
        definitions: Compile definitions of the device's kernels that change what they compute.

    Raises:
        ValueError: there is none; the message says what is missing.
    """
    if name in _SCALAR_PRIMITIVES:
        function, count = _SCALAR_PRIMITIVES[name]
        return Kernel(function, count, (None,) * count, (), ())
    if name in _COPIES:
        function, count = _COPIES[name]
        return Kernel(function, count, (None,) * count, (count - 1,), (), casts=True)
    without_schema = _WITHOUT_SCHEMA | (cmsis_nn.ROUNDING_ONCE if SINGLE_ROUNDING in definitions else {})
    if name in without_schema:
        function, count = without_schema[name]
        return Kernel(function, count + 1, (None,) * (count + 1), (count,), ())
    _register_quantized()
    namespace_and_name, _, overload = name.partition(".")
    try:
        schema = torch._C._get_schema(namespace_and_name, overload)
    except RuntimeError:
        raise ValueError(
            f"is unknown to PyTorch {torch.__version__}; import the package that registers it before opening the "
            "program, or delegate it"
        ) from None
    return _from_schema(name, schema)


def _from_schema(name: str, schema: torch._C.FunctionSchema) -> Kernel:
    arguments = schema.arguments
    outputs = tuple(index for index, argument in enumerate(arguments) if argument.is_out)
    mutated = tuple(
        index
        for index, argument in enumerate(arguments)
        if index not in outputs and argument.alias_info is not None and argument.alias_info.is_write
    )
    if function := _EXECUTORCH_ARITHMETIC.get(name):
        return Kernel(function, len(arguments), (None,) * len(arguments), outputs, mutated)
    namespace, _, operator = schema.name.partition("::")
    packet = getattr(getattr(torch.ops, namespace), operator)
    overload = _functional(packet, schema, name) if outputs else getattr(packet, schema.overload_name or "default")
    taken = {argument.name: argument for argument in overload._schema.arguments}
    keywords = tuple(
        argument.name if argument.name in taken and taken[argument.name].kwarg_only else None for argument in arguments
    )
    offered = {argument.name for argument in arguments}
    return Kernel(
        overload, len(arguments), keywords, outputs, mutated, makes_dtype="dtype" in taken and "dtype" not in offered
    )


def _functional(packet: Any, schema: torch._C.FunctionSchema, name: str) -> Any:
    """The overload with the arguments of `schema`, less its outputs, that returns the results.

    Overloads that create a tensor (`aten::full`) have additional arguments for dtype and layout.
    """
    wanted = [(argument.name, str(argument.type)) for argument in schema.arguments if not argument.is_out]
    names = {argument_name for argument_name, _ in wanted}
    for overload_name in packet.overloads():
        overload = getattr(packet, overload_name)
        candidate = overload._schema
        writes = any(item.alias_info is not None and item.alias_info.is_write for item in candidate.arguments)
        offered = [
            (argument.name, str(argument.type))
            for argument in candidate.arguments
            if argument.name in names or argument.name not in _TENSOR_OPTIONS
        ]
        # Out variants with a list of outputs have no returns.
        if not writes and offered == wanted and len(candidate.returns) == (len(schema.returns) or 1):
            return overload
    raise ValueError(f"has no functional variant in PyTorch {torch.__version__}; delegate it")


def _register_quantized() -> None:
    """Register the functional and out variants of quantized_decomposed, which takes milliseconds and happens once."""
    import executorch.kernels.quantized  # noqa: F401
    import torch.ao.quantization.fx._decomposed  # noqa: F401


def _quantize(
    value: torch.Tensor, scale: float | torch.Tensor, zero_point: int | torch.Tensor, low: int, high: int, dtype: int
) -> torch.Tensor:
    """round(value * (1 / scale)) + zero_point, clamped, in float32 as in ExecuTorch's kernel.

    The wheel's own `quantize_per_tensor.out` ignores strides, which is wrong for channels-last tensors.
    """
    inverse = 1.0 / torch.tensor(float(scale), dtype=torch.float32)
    result = torch.mul(value.to(torch.float32), inverse).round_().add_(int(zero_point)).clamp_(low, high)
    return result.to(dtype_numbered(dtype))


def _dequantize(
    value: torch.Tensor,
    scale: float | torch.Tensor,
    zero_point: int | torch.Tensor,
    low: int,
    high: int,
    dtype: int,
    out_dtype: int | None = None,
) -> torch.Tensor:
    """(value - zero_point) * scale in float32, without clamping, as in ExecuTorch's kernel."""
    result = value.to(torch.float32).sub_(int(zero_point)).mul_(torch.tensor(float(scale), dtype=torch.float32))
    return result if out_dtype is None else result.to(dtype_numbered(out_dtype))


def _max_pool2d_with_indices(value: torch.Tensor, *arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """PyTorch's own, on a contiguous copy: channels-last it refuses integers of 8 bits with more than 127 pixels."""
    contiguous = value.to(memory_format=torch.contiguous_format)
    maxima, indices = torch.ops.aten.max_pool2d_with_indices(contiguous, *arguments)
    return maxima, indices


def _upsample_nearest2d(value: torch.Tensor, *sizes: Any) -> torch.Tensor:
    """PyTorch's own, which moves no integers but those of one byte without a sign."""
    operator = torch.ops.aten.upsample_nearest2d
    function = operator.vec if len(sizes) == 2 else operator.default
    moved: torch.Tensor = function(value if value.is_floating_point() else value.double(), *sizes)
    return moved.to(value.dtype)


_EXECUTORCH_ARITHMETIC: dict[str, Callable[..., Any]] = {
    "quantized_decomposed::quantize_per_tensor.out": _quantize,
    "quantized_decomposed::quantize_per_tensor.Tensor_out": _quantize,
    "quantized_decomposed::dequantize_per_tensor.out": _dequantize,
    "quantized_decomposed::dequantize_per_tensor.Tensor_out": _dequantize,
    "aten::max_pool2d_with_indices.out": _max_pool2d_with_indices,
    "aten::upsample_nearest2d.out": _upsample_nearest2d,
    "aten::upsample_nearest2d.vec_out": _upsample_nearest2d,
}
"""Operators that PyTorch computes differently from ExecuTorch's kernels, or not for all tensors."""


BATCHABLE = frozenset(
    {
        "quantized_decomposed::quantize_per_tensor.out",
        "quantized_decomposed::quantize_per_tensor.Tensor_out",
        "quantized_decomposed::dequantize_per_tensor.out",
        "quantized_decomposed::dequantize_per_tensor.Tensor_out",
        "cortex_m::quantize_per_tensor.out",
        "cortex_m::dequantize_per_tensor.out",
        "dim_order_ops::_to_dim_order_copy.out",
        "dim_order_ops::_clone_dim_order.out",
        "aten::relu.out",
        "aten::clone.out",
    }
)
"""Operators that compute each element from the same element of their first argument by operations that IEEE 754 rounds
correctly, so that a tensor of many samples has the same bits as each alone.

Others may differ in the last bit: PyTorch computes the end of a tensor by other instructions than the rest of it.
"""


_WITHOUT_SCHEMA: dict[str, tuple[Callable[..., Any], int]] = cmsis_nn.OPERATORS | {
    # ExecuTorch's kernels of these names compute as those of quantized_decomposed.
    "cortex_m::quantize_per_tensor.out": (_quantize, 6),
    "cortex_m::dequantize_per_tensor.out": (_dequantize, 6),
}
"""Operators that only ExecuTorch's lowering registers: function, and number of arguments without the output."""


def _first(*arguments: Any) -> Any:
    """The tensor itself, which the caller copies into the output's element type and dimension order."""
    return arguments[0]


_COPIES: dict[str, tuple[Callable[..., Any], int]] = {
    # (self, non_blocking, dim_order, out)
    "dim_order_ops::_to_dim_order_copy.out": (_first, 4),
    "dim_order_ops::_clone_dim_order.out": (_first, 4),
    "dim_order_ops::_empty_dim_order.out": (lambda size, *_: torch.zeros(tuple(size)), 3),
    "et_copy::_h2d_copy.out": (_first, 2),
    "et_copy::_d2h_copy.out": (_first, 2),
}
"""Operators of ExecuTorch that PyTorch lacks: function, and number of arguments including the output, the last one."""


def _remainder(dividend: float, divisor: float) -> float:
    """The remainder as in C, with the sign of the dividend."""
    if isinstance(dividend, int) and isinstance(divisor, int):
        return (1 if dividend >= 0 else -1) * (abs(dividend) % abs(divisor))
    return math.fmod(dividend, divisor)


_SCALAR_PRIMITIVES: dict[str, tuple[Callable[..., Any], int]] = {
    "aten::sym_size.int": (lambda tensor, dim: tensor.shape[dim], 2),
    "aten::sym_numel": (lambda tensor: tensor.numel(), 1),
    "aten::_local_scalar_dense": (lambda tensor: tensor.item(), 1),
    "executorch_prim::sym_max.Scalar": (max, 2),
    "executorch_prim::sym_min.Scalar": (min, 2),
    "executorch_prim::add.Scalar": (lambda a, b: a + b, 2),
    "executorch_prim::sub.Scalar": (lambda a, b: a - b, 2),
    "executorch_prim::mul.Scalar": (lambda a, b: a * b, 2),
    "executorch_prim::floordiv.Scalar": (lambda a, b: a // b, 2),
    "executorch_prim::floordiv.int": (lambda a, b: a // b, 2),
    "executorch_prim::truediv.Scalar": (lambda a, b: a / b, 2),
    "executorch_prim::mod.Scalar": (_remainder, 2),
    "executorch_prim::mod.int": (_remainder, 2),
    "executorch_prim::eq.Scalar": (lambda a, b: a == b, 2),
    "executorch_prim::gt.Scalar": (lambda a, b: a > b, 2),
    "executorch_prim::lt.Scalar": (lambda a, b: a < b, 2),
    "executorch_prim::ge.Scalar": (lambda a, b: a >= b, 2),
    "executorch_prim::le.Scalar": (lambda a, b: a <= b, 2),
    "executorch_prim::neg.Scalar": (lambda a: -a, 1),
    "executorch_prim::sym_not.Scalar": (lambda a: not a, 1),
    "executorch_prim::sym_ite.Scalar": (lambda condition, a, b: a if condition else b, 3),
    "executorch_prim::sym_float.Scalar": (float, 1),
    "executorch_prim::sym_int.Scalar": (int, 1),
    "executorch_prim::ceil.Scalar": (math.ceil, 1),
    "executorch_prim::round.Scalar": (round, 1),
    "executorch_prim::trunc.Scalar": (math.trunc, 1),
}
"""Arithmetic on sizes and conditions: function and number of arguments; the result replaces the value after them."""


def view_shape(elements: int, shape: Sequence[int]) -> tuple[int, ...]:
    """`shape` with its -1, if any, resolved.

    Raises:
        ValueError: it does not have `elements` elements.
    """
    known = math.prod(size for size in shape if size != -1)
    unknown = list(shape).count(-1)
    if unknown:
        missing = elements // known if known else 0
        shape = [missing if size == -1 else size for size in shape]
    if unknown > 1 or math.prod(shape) != elements or any(size < 0 for size in shape):
        raise ValueError(f"{elements} elements cannot be viewed as {list(shape)}")
    return tuple(shape)
