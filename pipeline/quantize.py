"""Step quantize: exported program and observer state -> quantized exported program."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from executorch.exir.passes.remove_unused_parameters_pass import remove_unused_parameters_pass
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e

from pipeline.contracts import ObservedRange, ObserverState, QuantizedTensor
from pipeline.dynamic_shapes import dynamic_shapes_of
from pipeline.origins import float_node, observer_of
from pipeline.provenance import shared_provenance
from pipeline.pt2e import prepare, restore_observers
from pipeline.ranges import constant_ranges, observed_modules

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torchao.quantization.pt2e.quantizer import Quantizer


def quantize(
    program: ExportedProgram, quantizer: Quantizer, state: ObserverState
) -> tuple[ExportedProgram, tuple[QuantizedTensor, ...]]:
    """Convert `program` with the ranges that calibration found.

    Returns:
        The quantized ATen program, and all tensors that are integers in it.
    """
    prepared = prepare(program, quantizer)
    restore_observers(prepared, state)
    ranges, modules = {**state.ranges, **constant_ranges(prepared)}, observed_modules(prepared)
    assert program.example_inputs is not None
    with torch.no_grad(), shared_provenance():
        converted = convert_pt2e(prepared)
        quantized = torch.export.export(converted, *program.example_inputs, dynamic_shapes=dynamic_shapes_of(program))
    # The float weights are dead after conversion, yet would be stored and read by every later stage.
    quantized = remove_unused_parameters_pass(quantized)
    return quantized, quantized_tensors(quantized, ranges, modules)


def quantized_tensors(
    program: ExportedProgram,
    ranges: Mapping[str, ObservedRange] | None = None,
    modules: Mapping[str, str] | None = None,
) -> tuple[QuantizedTensor, ...]:
    """All tensors of a quantized program that are held in integers.

    Args:
        program: Fresh from conversion: what is stored and read again no longer knows its observers.
        ranges: What each observer saw.
        modules: Path of the module that each observer's tensor belongs to.
    """
    found = []
    stored = program.graph_signature.inputs_to_buffers | program.graph_signature.inputs_to_parameters

    def numbers(argument: object) -> list[float]:
        if not isinstance(argument, torch.fx.Node):
            return [float(argument)]  # type: ignore[arg-type]
        if argument.name not in stored:
            return []  # computed while the program runs
        name = stored[argument.name]
        tensor = program.state_dict.get(name, program.constants.get(name))
        assert tensor is not None
        return [float(value) for value in tensor.flatten().tolist()]

    for node in program.graph.nodes:
        name = str(node.target)
        if node.op != "call_function" or not name.startswith("quantized_decomposed.dequantize_per_"):
            continue
        per_channel = "per_channel" in name
        source, scales, zero_points = node.args[:3]
        axis = node.args[3] if per_channel else None
        quant_min, quant_max, dtype = node.args[4:7] if per_channel else node.args[3:6]
        observer = observer_of(node) or ""
        is_constant = source.op == "placeholder"
        # Not every quantizer's nodes remember where they come from; what they quantize does.
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
                axis=None if axis is None else int(axis),
                is_constant=is_constant,
                node=origin or "",
                module=(modules or {}).get(observer, ""),
                observed=(ranges or {}).get(observer),
            )
        )
    return tuple(found)
