"""The integer tensors of a quantized program, as its dequantize nodes describe them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from lowerdeck.contracts.quantization import ObservedRange, QuantizedTensor
from lowerdeck.graph.modules import module_path
from lowerdeck.graph.node_origins import float_node, observer_of

if TYPE_CHECKING:
    from torch.export import ExportedProgram

_PER_CHANNEL = "quantized_decomposed.dequantize_per_channel"
_PER_TENSOR = "quantized_decomposed.dequantize_per_tensor"
_IN_BLOCKS = "torchao.dequantize_affine"


def quantized_tensors(
    program: ExportedProgram,
    ranges: Mapping[str, ObservedRange] | None = None,
    modules: Mapping[str, str] | None = None,
) -> tuple[QuantizedTensor, ...]:
    """All integer tensors of a quantized program.

    Args:
        program: Directly from conversion, because storing a program loses the names of its observers.
        ranges: Range that each observer recorded.
        modules: Path of the module that each observer's tensor belongs to; None without observers.
    """
    found = []
    stored = program.graph_signature.inputs_to_buffers | program.graph_signature.inputs_to_parameters

    def numbers(argument: object) -> list[float]:
        if not isinstance(argument, torch.fx.Node):
            return [float(argument)]  # type: ignore[arg-type]
        if argument.name not in stored:
            return []  # computed at run time
        name = stored[argument.name]
        tensor = program.state_dict.get(name, program.constants.get(name))
        assert tensor is not None
        return [float(value) for value in tensor.flatten().tolist()]

    for node in program.graph.nodes:
        described = _described(node)
        if described is None:
            continue
        scales, zero_points, quant_min, quant_max, dtype, axis, group_size = described
        source, observer = node.args[0], observer_of(node) or ""
        is_constant = source.op == "placeholder"
        # The nodes of some quantizers lack provenance; their inputs have it.
        origin = None if is_constant else float_node(source) or float_node(source.args[0])
        found.append(
            QuantizedTensor(
                name=node.name,
                source=str(stored.get(source.name, source.name)),
                dtype=str(dtype).removeprefix("torch."),
                quant_min=int(quant_min),
                quant_max=int(quant_max),
                scales=tuple(numbers(scales)),
                zero_points=tuple(int(value) for value in numbers(zero_points)),
                axis=axis,
                group_size=group_size,
                is_constant=is_constant,
                node=origin or "",
                module=module_path(node) if modules is None else modules.get(observer, ""),
                observed=(ranges or {}).get(observer),
            )
        )
    return tuple(found)


def _described(node: torch.fx.Node) -> tuple[Any, ...] | None:
    """Scales, zero points, quant_min, quant_max, dtype, axis and group size of a dequantize node; None for others."""
    name = str(node.target)
    arguments: Any = node.args
    if node.op != "call_function":
        return None
    if name.startswith(_PER_TENSOR):
        return (*arguments[1:6], None, None)
    if name.startswith(_PER_CHANNEL):
        scales, zero_points, axis, *limits = arguments[1:7]
        return (scales, zero_points, *limits, axis, None)
    if name.startswith(_IN_BLOCKS):
        blocks, scales, zero_points, dtype, quant_min, quant_max = arguments[1:7]
        rows, columns = arguments[0].meta["val"].shape[0], arguments[0].meta["val"].shape[-1]
        axis = 0 if blocks[0] < rows else None
        group_size = blocks[-1] if blocks[-1] < columns else None
        return scales, zero_points, quant_min, quant_max, dtype, axis, group_size
    return None
