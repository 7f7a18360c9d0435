"""Whether a quantized program is far from the float one, at which layers it departs from it, and what may help."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

import torch

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.contracts.evaluation import LayerMetrics, LossyLayer, OutputSpec, QuantizationLoss
from lowerdeck.contracts.samples import Sample
from lowerdeck.evaluation.layerwise_sqnr import compare_joined, compare_layers, difference, output_specs, step_behind
from lowerdeck.evaluation.lost_quantities import LostQuantities, lost_quantities
from lowerdeck.evaluation.quantization_error import IDENTICAL_DB, masked_in_both, sqnr_db
from lowerdeck.graph.exact_integers import is_rounded_quantity
from lowerdeck.graph.io_boundary import output_nodes
from lowerdeck.graph.library_errors import described_node
from lowerdeck.graph.masked_scores import HANDING_ON, packet_of
from lowerdeck.graph.modules import module_path
from lowerdeck.graph.node_values import NodeValues
from lowerdeck.graph.nodes import STATIC_QUANTIZE, operator_name
from lowerdeck.graph.quantities import BELOW_1, known_values, quantities
from lowerdeck.graph.source_lines import source_line

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from lowerdeck.contracts.quantization import QuantizedTensor
    from lowerdeck.contracts.samples import Split

    _Outputs = tuple[torch.Tensor, torch.Tensor]

_aten = torch.ops.aten
_MAX_LAYERS = 5
_LEAST_DROP_DB = 6.0
"""A layer that loses less, one bit, is none at which the loss arises."""
_LEAST_VARIATION = 0.05
"""Share of the largest value by which samples differ, beyond what a few steps of eight bits cannot express."""
_LEAVING_NUMBERS = {
    *(_aten.div, _aten.reciprocal, _aten.rsqrt, _aten.sqrt, _aten.pow, _aten.exp, _aten.exp2, _aten.expm1),
    *(_aten.log, _aten.log2, _aten.log10, _aten.log1p, _aten.acos, _aten.asin, _aten.acosh, _aten.atanh, _aten.tan),
}
_CLIPPING = 1e-3
"""Share of clipped values from which an observer that clips nothing is suggested."""


def quantization_loss(
    exported: ExportedProgram,
    quantized: ExportedProgram,
    samples: Sequence[tuple[torch.Tensor, ...]],
    tensors: Sequence[QuantizedTensor],
    least_sqnr_db: float | None,
) -> QuantizationLoss | None:
    """Compare the outputs of two programs, and their layers only if the outputs are far apart.

    Args:
        exported: The float ATen program.
        quantized: The quantized ATen program.
        samples: Inputs of the model; calibration samples.
        tensors: The quantization report, for what may help.
        least_sqnr_db: Outputs with less signal-to-quantization-noise ratio are far off; None if none are.

    Returns:
        None where the outputs are near enough, or nothing can be said of them: no samples, or neither floats nor
        floats that the model rounds to integers.

    Raises:
        LowerdeckError: an output is NaN or infinite where that of the float program is not, or NaN is quantized, where
            calibration has seen numbers; the message has the layer.
    """
    specs = output_specs(exported, quantized)
    outputs, lost_inside = _outputs(exported, quantized, samples, specs)
    split = cast("Split", [Sample(inputs=inputs, label=None, digest="") for inputs in samples])
    joined = compare_joined(exported, quantized, split, range(len(samples)))
    ratios = {at: sqnr_db(*powers) for at, each in outputs.items() if (powers := _signal_and_noise(each))[0]}
    near = {at: outputs[at] for at, ratio in ratios.items() if least_sqnr_db is not None and ratio >= least_sqnr_db}
    beside = _beside_others(exported, quantized, near, samples, least_sqnr_db or 0.0)
    parts = [part.sqnr_db for parts in joined for part in parts]
    found = min([*ratios.values(), *parts, *(each.sqnr_db for each in beside.values())], default=None)
    every = itertools.chain(*outputs.values())
    lost = sum(int((expected.isfinite() & ~actual.isfinite()).sum()) for expected, actual in every)
    if lost_inside and not lost:  # no layer need be far off
        raise _not_finite(f"{lost_inside} values within the program NaN", quantized, samples)
    if not lost and (found is None or least_sqnr_db is None or found >= least_sqnr_db):
        return None
    layers = {layer.node: layer for layer in compare_layers(exported, quantized, split, range(len(samples)))}
    lines = {node.name: source_line(node.meta.get("stack_trace")) for node in exported.graph.nodes}
    lossy = [
        _lossy(layer, _inputs_sqnr_db(exported, layers, layer.node), tensors, lines[layer.node])
        for layer in layers.values()
    ]
    if lost:
        raise _not_finite(
            f"{lost} values of the outputs NaN or infinite",
            quantized,
            samples,
            [layer for layer in lossy if layer.sqnr_db == -IDENTICAL_DB],
        )
    assert least_sqnr_db is not None, "else nothing is far off"
    assert found is not None, "else nothing is far off"
    lossy += [
        _lossy_part(part, at, _inputs_sqnr_db(exported, layers, part.node))
        for parts in joined
        for at, part in enumerate(parts)
    ]
    named = {layer.node for layer in lossy[len(layers) :] if layer.sqnr_db < least_sqnr_db}
    computing = {_compared(node, layers): each for node, each in beside.items()}
    lossy += [
        _lossy_quantities(node, each, _inputs_sqnr_db(exported, layers, node.name), lines[node.name])
        for node, each in computing.items()
        if node.name not in named
    ]
    below = [layer for layer in lossy if layer.sqnr_db < least_sqnr_db]
    departing = [layer for layer in below if layer.inputs_sqnr_db - layer.sqnr_db >= _LEAST_DROP_DB]
    worst = sorted(departing or below, key=lambda layer: layer.sqnr_db - layer.inputs_sqnr_db)
    return QuantizationLoss(
        sqnr_db=found, least_sqnr_db=least_sqnr_db, num_samples=len(samples), layers=tuple(worst[:_MAX_LAYERS])
    )


def _not_finite(
    what: str,
    quantized: ExportedProgram,
    samples: Sequence[tuple[torch.Tensor, ...]],
    layers: Sequence[LossyLayer] = (),
) -> LowerdeckError:
    begins = next((str(layer) for layer in layers if layer.inputs_sqnr_db > -IDENTICAL_DB), "")
    if not begins and (first := _first_not_finite(quantized, samples)) is not None:
        way_out = _kept_in_float(module_path(first), source_line(first.meta.get("stack_trace")))
        begins = f"{described_node(first)}; try {way_out}"
    place = f"\nIt begins at {begins}" if begins else ", or choose another quantization"
    return LowerdeckError(
        f"quantization makes {what} that the float program has as numbers "
        f"({len(samples)} calibration samples), as where a sum leaves the range of float16, or a divisor becomes 0: "
        f"keep the layer in float, or bound its values{place}"
    )


def _first_not_finite(quantized: ExportedProgram, samples: Sequence[tuple[torch.Tensor, ...]]) -> torch.fx.Node | None:
    """The first operator that may make NaN or an infinity of numbers, and does so for one of the samples."""
    suspected: list[torch.fx.Node] = [node for node in quantized.graph.nodes if packet_of(node) in _LEAVING_NUMBERS]
    execute = NodeValues(quantized, {each.name for node in suspected for each in (node, *node.all_input_nodes)})
    for inputs in samples:
        finite = {name for name, value in execute(inputs).items() if bool(value.isfinite().all())}
        for node in suspected:
            if node.name not in finite and finite.issuperset(source.name for source in node.all_input_nodes):
                return node
    return None


def _may_leave_numbers(quantized: ExportedProgram) -> set[str]:
    """What is quantized of results that may be NaN although what they are computed of is not.

    An infinity becomes the largest integer everywhere, as a reciprocal that a calibrated range clips.
    """
    found, unsafe = set[str](), set[torch.fx.Node]()
    for node in quantized.graph.nodes:
        if node.op != "call_function":
            continue
        is_behind = not unsafe.isdisjoint(node.all_input_nodes)
        if operator_name(node).startswith(STATIC_QUANTIZE):
            found |= {node.all_input_nodes[0].name} if is_behind else set()
        elif is_behind or packet_of(node) in _LEAVING_NUMBERS:
            unsafe.add(node)
    return found


def _outputs(
    exported: ExportedProgram,
    quantized: ExportedProgram,
    samples: Sequence[tuple[torch.Tensor, ...]],
    specs: Sequence[OutputSpec],
) -> tuple[dict[int, list[_Outputs]], int]:
    """Those of quantities by place: the expected and actual ones of every sample, without what masks leave out.

    And how many values the quantized program has to quantize that are NaN.
    """
    names = [tuple(map(str, program.graph_signature.user_outputs)) for program in (exported, quantized)]
    returned = (node for node in output_nodes(exported) if isinstance(node, torch.fx.Node))
    rounded = {node.name for node in returned if is_rounded_quantity(node)}
    inside = _may_leave_numbers(quantized)
    execute = [NodeValues(exported, set(names[0])), NodeValues(quantized, inside.union(names[1]))]
    pairs = list(zip(*names, specs, strict=True))
    outputs: dict[int, list[_Outputs]] = {}
    lost_inside = 0
    for inputs in samples:
        expected, actual = (values(inputs) for values in execute)
        lost_inside += sum(int(actual[name].isnan().sum()) for name in inside)
        for at, (name, other, spec) in enumerate(pairs):
            if name in expected and (expected[name].is_floating_point() or name in rounded):
                wanted, given = expected[name].double(), actual[other].double()
                masked = masked_in_both(given, wanted, spec.masked_numbers)
                kept = wanted.where(~masked, 0.0), given.where(~masked, 0.0)
                outputs.setdefault(at, []).append(kept)
    return outputs, lost_inside


def _beside_others(
    exported: ExportedProgram,
    quantized: ExportedProgram,
    outputs: Mapping[int, Sequence[_Outputs]],
    samples: Sequence[tuple[torch.Tensor, ...]],
    least_sqnr_db: float,
) -> dict[torch.fx.Node, LostQuantities]:
    """What is lost in outputs that are near as a whole, by the nodes that return these.

    Results of a sigmoid or a softmax are of one kind: classes that are never likely are no quantities of their own.
    """
    found, constants = {}, known_values(quantized)
    for at, each in outputs.items():
        lsb = step_behind(output_nodes(quantized)[at], constants)
        batch = next((value.shape[0] for value in samples[0] if value.dim()), 1)
        lost = lost_quantities(each, lsb, batch, least_sqnr_db) if lsb else None
        if lost:
            found[output_nodes(exported)[at]] = lost
    known = quantities(exported.graph, known_values(exported)) if found else {}
    return {node: lost for node, lost in found.items() if known[node].kinds != {BELOW_1}}


def _compared(node: torch.fx.Node, layers: Mapping[str, LayerMetrics]) -> torch.fx.Node:
    """What computes an output, if that is compared: a layer in front of a view of its result."""
    before = node
    while (before.name not in layers or packet_of(before) in HANDING_ON) and before.all_input_nodes:
        before = before.all_input_nodes[0]
    return before if before.name in layers else node


def _signal_and_noise(outputs: Sequence[_Outputs]) -> tuple[float, float]:
    """Sums of squares, from what an output should be and is for each sample.

    One that is always the same is measured without its mean: the bias of the last layer would hide that nothing of the
    input is left.
    """
    expected, actual = (torch.stack(each) for each in zip(*outputs, strict=True))
    noise = float(difference(expected, actual).square().sum())
    expected = expected[:, expected.isfinite().all(0)]
    if not expected.numel():
        return 0.0, noise
    largest, range_of_samples = expected.abs().max(), (expected.amax(0) - expected.amin(0)).max()
    if bool((actual == actual[0]).all()) and range_of_samples > _LEAST_VARIATION * largest:
        expected = expected - expected.mean(0)
    return float(expected.square().sum()), noise


def _inputs_sqnr_db(exported: ExportedProgram, layers: Mapping[str, LayerMetrics], name: str) -> float:
    """The lowest of the tensors before a layer that were compared; IDENTICAL_DB where there are none."""
    (node,) = (node for node in exported.graph.nodes if node.name == name)
    waiting, seen, found = list(node.all_input_nodes), set[torch.fx.Node](), [IDENTICAL_DB]
    while waiting:
        before = waiting.pop()
        if before in seen:
            continue
        seen.add(before)
        if before.name in layers:
            found.append(layers[before.name].sqnr_db)
        else:
            waiting += before.all_input_nodes
    return min(found)


def _lossy(layer: LayerMetrics, inputs_sqnr_db: float, tensors: Sequence[QuantizedTensor], line: str) -> LossyLayer:
    observed = [tensor.observed for tensor in tensors if tensor.node == layer.node and tensor.observed]
    weights = [tensor for tensor in tensors if tensor.is_constant and layer.module and tensor.module == layer.module]
    ways_out = []
    if any(weight.dtype != "int32" and len(weight.scales) == 1 for weight in weights):
        ways_out.append("quantization.weight_granularity: per_channel, if the target offers it")
    if any(seen.clipped_share > _CLIPPING for seen in observed):
        ways_out.append("quantization.activation_observer: {kind: min_max}")
    return LossyLayer(
        node=layer.node,
        operator=layer.operator,
        module=layer.module,
        sqnr_db=layer.sqnr_db,
        inputs_sqnr_db=inputs_sqnr_db,
        ways_out=(*ways_out, _kept_in_float(layer.module, line)),
    )


def _kept_in_float(module: str, line: str) -> str:
    if module:
        return f"quantization.keep_float: [{module}]"
    return (
        f"quantization.keep_float for a module that has {line or 'this line'} alone, or quantization.scheme: "
        "int16x8 or float32, if the target offers it"
    )


def _lossy_part(part: LayerMetrics, at: int, inputs_sqnr_db: float) -> LossyLayer:
    return LossyLayer(
        node=part.node,
        operator=part.operator,
        module=part.module,
        sqnr_db=part.sqnr_db,
        inputs_sqnr_db=inputs_sqnr_db,
        ways_out=(f"to return its tensor {at} as an output of its own, because all that is joined has one scale",),
    )


def _lossy_quantities(node: torch.fx.Node, lost: LostQuantities, inputs_sqnr_db: float, line: str) -> LossyLayer:
    module = module_path(node)
    return LossyLayer(
        node=node.name,
        operator=str(node.target),
        module=module,
        sqnr_db=lost.sqnr_db,
        inputs_sqnr_db=inputs_sqnr_db,
        ways_out=(lost.way_out, _kept_in_float(module, line)),
    )
