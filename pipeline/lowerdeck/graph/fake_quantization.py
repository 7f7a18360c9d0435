"""Executes quantize and dequantize operators with less memory than PyTorch's functions, and the same results.

These functions make a new tensor at each of their three to five steps, and the system takes longer to provide its
memory than the processor to fill it: they take three quarters of the time of a quantized MobileNetV2. Here the same
operations follow in the same order within one tensor, so the results are equal to the bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.ao.quantization.fx import _decomposed  # noqa: F401  registers the operators

from lowerdeck.graph.nodes import STATIC_DEQUANTIZE, aten_operator, operator_name

_OPERATORS = torch.ops.quantized_decomposed
_MOST_BYTES = 2
"""Bytes of the integers that float32 holds exactly, also less their zero point; biases have four."""


def _quantize_per_tensor(
    values: torch.Tensor, scale: float, zero_point: int, quant_min: int, quant_max: int, dtype: torch.dtype
) -> torch.Tensor:
    if values.dtype != torch.float32:
        values = values.to(torch.float32)  # as PyTorch does for half precision
    return (values * (1.0 / scale)).round_().add_(zero_point).clamp_(quant_min, quant_max).to(dtype)


def _dequantize_per_tensor(
    values: torch.Tensor,
    scale: float,
    zero_point: int,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
    *,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    return values.to(out_dtype or torch.float32).sub_(zero_point).mul_(scale)


def _dequantize_per_channel(
    values: torch.Tensor,
    scales: torch.Tensor,
    zero_points: torch.Tensor | None,
    axis: int,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
    *,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    if values.itemsize > _MOST_BYTES or scales.dtype != torch.float32 or out_dtype not in (None, torch.float32):
        arguments = values, scales, zero_points, axis, quant_min, quant_max, dtype
        made: torch.Tensor = _OPERATORS.dequantize_per_channel.default(*arguments, out_dtype=out_dtype)
        return made
    shape = [1] * values.dim()
    shape[axis] = -1
    result = values.to(torch.float32)
    if zero_points is not None:
        result.sub_(zero_points.view(shape))
    return result.mul_(scales.view(shape))


EQUIVALENTS: dict[Any, Callable[..., torch.Tensor]] = {
    _OPERATORS.quantize_per_tensor.default: _quantize_per_tensor,
    _OPERATORS.dequantize_per_tensor.default: _dequantize_per_tensor,
    _OPERATORS.dequantize_per_channel.default: _dequantize_per_channel,
}
"""Operator of an ATen program -> the function with its results."""
ELEMENTWISE = (_quantize_per_tensor, _dequantize_per_tensor)
"""Those of the functions that compute each element by the same numbers, wherever it is in the tensor."""


def equivalent(target: Any) -> Any:
    """The function to call instead of the operator `target` of an ATen or edge program; `target` if there is none."""
    return EQUIVALENTS.get(aten_operator(target), target)


def constant_dequantizes(constants: Iterable[torch.fx.Node]) -> list[torch.fx.Node]:
    """The nodes that dequantize constants, and whose results nothing writes: all calls can share one result.

    Args:
        constants: Nodes of parameters, buffers and constants, e.g. integer weights, their scales and zero points.
    """
    unchanging = {node for node in constants if _is_only_read(node)}
    users = dict.fromkeys(user for node in unchanging for user in node.users)
    return [
        user
        for user in users
        if operator_name(user).startswith(STATIC_DEQUANTIZE)
        and unchanging.issuperset(user.all_input_nodes)
        and _is_only_read(user)
    ]


def _is_only_read(node: torch.fx.Node) -> bool:
    """Whether no user of `node` writes an argument or returns a view of one, which others may write."""
    schemas = [getattr(aten_operator(user.target), "_schema", None) for user in node.users]
    return all(
        schema is not None and all(argument.alias_info is None for argument in schema.arguments) for schema in schemas
    )


def quicken(module: torch.fx.GraphModule) -> None:
    """Have an ATen program's module dequantize its weights once, and everything else by the functions above."""
    graph = module.graph
    for number, node in enumerate(constant_dequantizes(node for node in graph.nodes if node.op == "get_attr")):
        values = [attribute(module, arg) if isinstance(arg, torch.fx.Node) else arg for arg in node.args]
        dequantize = equivalent(node.target)
        name = f"_dequantized_{number}"
        with torch.no_grad():
            module.register_buffer(name, dequantize(*values, **node.kwargs), persistent=False)
        with graph.inserting_before(node):
            node.replace_all_uses_with(graph.get_attr(name))
        graph.erase_node(node)
    for node in graph.nodes:
        if node.op == "call_function":
            node.target = equivalent(node.target)
    module.recompile()


def attribute(module: torch.fx.GraphModule, node: torch.fx.Node) -> Any:
    """The value of a `get_attr` node of `module`."""
    value: Any = module
    for name in str(node.target).split("."):
        value = getattr(value, name)
    return value
