"""SQNR layer by layer: how far every quantized tensor is from the same tensor of the float program.

ExecuTorch's numeric gap (devtools.Inspector) compares edge programs with an ETDump of its own runtime; torchao's
numeric debugger compares two graphs of one process by graph ids, which storing renumbers. Here, separately stored
programs are matched by provenance: each node of the quantized program has the name of the float program's node that it
was made from. A program that was traced from the model itself lacks these names, but has the same operators in the same
order.
"""

from __future__ import annotations

import dataclasses
import itertools
import operator
from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.export.graph_signature import InputKind

from lowerdeck.contracts.evaluation import LayerMetrics, OutputSpec
from lowerdeck.contracts.samples import Split
from lowerdeck.evaluation.quantization_error import sqnr_db
from lowerdeck.graph.io_boundary import output_nodes
from lowerdeck.graph.joined_outputs import joined_parts
from lowerdeck.graph.mask_numbers import masked_outputs
from lowerdeck.graph.masked_scores import IS_MASKED, behind_masks
from lowerdeck.graph.modules import module_path
from lowerdeck.graph.node_origins import float_node
from lowerdeck.graph.node_values import NodeValues
from lowerdeck.graph.nodes import STATIC_DEQUANTIZE, STATIC_QUANTIZE
from lowerdeck.graph.outputs import output_names
from lowerdeck.graph.quantities import JOINING, LAYERS, known_values, operator_of

if TYPE_CHECKING:
    from torch.export import ExportedProgram

_BATCH_NORM = "aten.batch_norm"
_TORCHAO = "torchao."  # namespace of operators in a program that torchao's quantize_ modified
# Operators that do not change values, so their output has the quantization of their input.
_VALUE_PRESERVING_OPS = (
    "aten.view", "aten.reshape", "aten._unsafe_view", "aten.flatten", "aten.squeeze", "aten.unsqueeze", "aten.permute",
    "aten.transpose", "aten.t.", "aten.slice", "aten.select", "aten.clone", "aten.contiguous", "aten.alias",
    "aten.detach", "aten.expand", "aten.dropout", "<built-in function getitem>",
)  # fmt: skip


@dataclass(frozen=True)
class _Pair:
    """The same tensor in both programs."""

    source: torch.fx.Node
    """Node of the float program that computes it."""
    folded: str
    """Name of the float program's node with the result: `source`, or the batch norm folded into it."""
    dequantize: str
    """Name of the quantized program's node with the result in floating point, dequantized or rounded."""
    lsb: float | None
    part: slice | None = None
    """Which of its elements are compared, in dimension `dim`; None for all."""
    dim: int = 0


def compare_layers(
    exported: ExportedProgram, quantized: ExportedProgram, split: Split, samples: Sequence[int]
) -> list[LayerMetrics]:
    """SQNR of every integer tensor of the quantized program, worst first.

    A tensor is compared after its quantization. Where one node of the float program became several, the last one is
    compared. Weights, tensors without provenance, and scores that a mask leaves out are not compared. In a program that
    was traced again (`float16`, 4-bit weights), every operator's result is compared.

    Args:
        exported: The float ATen program.
        quantized: The quantized ATen program.
        split: The split of the samples.
        samples: Indices into it; at least one.
    """
    pairs = _pairs(exported, quantized) or _retraced_pairs(exported, quantized)
    return sorted(_compared(exported, quantized, pairs, split, samples), key=lambda layer: layer.sqnr_db)


def compare_joined(
    exported: ExportedProgram, quantized: ExportedProgram, split: Split, samples: Sequence[int]
) -> list[list[LayerMetrics]]:
    """SQNR of what quantized joins in outputs put beside each other with one scale, by join, in order.

    Arguments are those of `compare_layers`.
    """
    joins, nodes = joined_parts(exported), {node.name: node for node in quantized.graph.nodes}
    pairs = [
        dataclasses.replace(pair, part=part, dim=dim)
        for pair in _pairs(exported, quantized)
        if pair.source in joins and not _is_read_in_float(nodes[pair.dequantize])
        for dim, part in joins[pair.source]
    ]
    layers = _compared(exported, quantized, pairs, split, samples)
    return [list(parts) for _, parts in itertools.groupby(layers, key=lambda layer: layer.node)]


def _is_read_in_float(dequantize: torch.fx.Node) -> bool:
    """Whether something reads what is quantized before that, as outputs do beside a comparison that reads integers."""
    quantize = dequantize.all_input_nodes[0]
    return any(not _calls(user, STATIC_QUANTIZE) for user in quantize.all_input_nodes[0].users)


def _compared(
    exported: ExportedProgram,
    quantized: ExportedProgram,
    pairs: Sequence[_Pair],
    split: Split,
    samples: Sequence[int],
) -> list[LayerMetrics]:
    """SQNR of each pair."""
    if not pairs:
        return []
    reference = NodeValues(exported, {pair.folded for pair in pairs})
    actual = NodeValues(quantized, {pair.dequantize for pair in pairs})
    signal, noise = [0.0] * len(pairs), [0.0] * len(pairs)
    masked = {node.name for node in behind_masks(exported)}
    for sample in samples:
        inputs = split[sample].inputs
        expected, found = reference(inputs), actual(inputs)
        for index, pair in enumerate(pairs):
            wanted, got = expected[pair.folded].double(), found[pair.dequantize].double()
            if pair.part is not None:
                indices = (slice(None),) * pair.dim + (pair.part,)
                wanted, got = wanted[indices], got[indices]
            if pair.folded in masked:
                wanted, got = wanted[wanted > IS_MASKED], got[wanted > IS_MASKED]
            signal[index] += float(wanted[wanted.isfinite()].square().sum())
            noise[index] += float(difference(wanted, got).square().sum())
    return [
        LayerMetrics(
            node=pair.source.name,
            operator="input" if pair.source.op == "placeholder" else str(pair.source.target),
            module=module_path(pair.source),
            lsb=pair.lsb,
            num_samples=len(samples),
            sqnr_db=sqnr_db(signal[index], noise[index]),
        )
        for index, pair in enumerate(pairs)
    ]


def difference(expected: torch.Tensor, actual: torch.Tensor) -> torch.Tensor:
    """`expected - actual`, 0 where both are NaN or the same infinity."""
    same = (expected == actual) | (expected.isnan() & actual.isnan())
    return torch.where(same, 0.0, expected - actual)


def output_specs(exported: ExportedProgram, quantized: ExportedProgram) -> tuple[OutputSpec, ...]:
    """The outputs of both programs, with the steps of their quantization."""
    specs = map(_output_spec, output_names(exported), output_nodes(quantized))
    return tuple(
        dataclasses.replace(spec, masked_numbers=numbers)
        for spec, numbers in zip(specs, masked_outputs(exported), strict=True)
    )


def _output_spec(name: str, node: Any) -> OutputSpec:
    value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    if isinstance(value, torch.Tensor) and not value.is_floating_point():
        return OutputSpec(name=name, lsb=1.0, is_integer=True)
    while isinstance(node, torch.fx.Node) and str(node.target).startswith(_VALUE_PRESERVING_OPS):
        node = node.args[0]
    is_quantized = isinstance(node, torch.fx.Node) and _calls(node, STATIC_DEQUANTIZE)
    return OutputSpec(name=name, lsb=_lsb(node) if is_quantized else None)


def step_behind(output: torch.fx.Node, constants: Container[torch.fx.Node]) -> float | None:
    """The step of the one quantized tensor of which a program computes `output`, without a layer between both.

    Args:
        output: A node of a quantized program; that of an activation without a kernel of 8 bits is one in float.
        constants: The nodes that no input changes.

    Returns:
        None where there is none, or another scale: behind a layer in float, and where several tensors come together.
    """
    waiting, seen = [output], set[torch.fx.Node]()
    steps = dict[torch.fx.Node, float | None]()
    while waiting:
        node = waiting.pop()
        if node in seen or node in constants:
            continue
        seen.add(node)
        if _calls(node, STATIC_DEQUANTIZE):
            steps[node.all_input_nodes[0]] = _lsb(node)
        elif node.op == "placeholder" or operator_of(node) in (*LAYERS, *JOINING):
            return None
        waiting += () if _calls(node, STATIC_DEQUANTIZE) else node.all_input_nodes
    return next(iter(steps.values())) if len(steps) == 1 else None


def _pairs(exported: ExportedProgram, quantized: ExportedProgram) -> list[_Pair]:
    """The tensors that can be compared, in the order of the quantized program."""
    originals = {node.name: node for node in exported.graph.nodes}
    signature = exported.graph_signature
    stored = {spec.arg.name for spec in signature.input_specs if spec.kind is not InputKind.USER_INPUT}
    computing = (node for node in quantized.graph.nodes if not _calls(node, STATIC_QUANTIZE, STATIC_DEQUANTIZE))
    remaining = {float_node(node) for node in computing}
    fixed = [known_values(program) for program in (exported, quantized)]
    pairs: dict[str, _Pair] = {}
    for node in quantized.graph.nodes:
        if not _calls(node, STATIC_QUANTIZE):
            continue
        # The nodes of some quantizers lack provenance; their inputs have it.
        source = originals.get(float_node(node) or float_node(node.args[0]) or "")
        dequantize = next((user for user in node.users if _calls(user, STATIC_DEQUANTIZE)), None)
        if source is None or dequantize is None or source.name in stored:
            continue
        if node in fixed[1] and source not in fixed[0]:
            continue  # a number that the source reads, as of a comparison with one
        folded = _folded_into(source, remaining)
        if _shape(folded) == _shape(dequantize):
            pairs.pop(source.name, None)  # the last of several replaces the others
            pairs[source.name] = _Pair(source, folded.name, dequantize.name, _lsb(dequantize))
    return list(pairs.values())


def _retraced_pairs(exported: ExportedProgram, quantized: ExportedProgram) -> list[_Pair]:
    """The results of operators, if `quantized` was traced from the model like `exported`, with other dtypes."""
    originals, others = _operators(exported), _operators(quantized)
    computing = [node for node in others if not _calls(node, _TORCHAO)]
    is_half = any(getattr(node.meta.get("val"), "dtype", None) == torch.float16 for node in computing)
    if computing == others and not is_half:
        return []
    if [str(node.target) for node in originals] != [str(node.target) for node in computing]:
        return []
    return [
        _Pair(original, original.name, other.name, None)
        for original, other in zip(originals, computing, strict=True)
        if _shape(original) is not None and _shape(original) == _shape(other)
    ]


def _operators(program: ExportedProgram) -> list[torch.fx.Node]:
    """The nodes that call operators, except getitem."""
    return [node for node in program.graph.nodes if _calls(node, "") and node.target is not operator.getitem]


def _folded_into(source: torch.fx.Node, remaining: Container[str | None]) -> torch.fx.Node:
    """The float program's node with the result of `source` in the quantized program: a folded batch norm, if any."""
    users = list(source.users)
    if len(users) == 1 and str(users[0].target).startswith(_BATCH_NORM) and users[0].name not in remaining:
        return users[0]
    return source


def _calls(node: torch.fx.Node, *prefixes: str) -> bool:
    return node.op == "call_function" and str(node.target).startswith(prefixes)


def _lsb(dequantize: torch.fx.Node) -> float | None:
    """Scale of a dequantize node, None where it is a tensor: one per channel, or computed at run time."""
    scale = dequantize.args[1]
    return float(scale) if isinstance(scale, (int, float)) else None


def _shape(node: torch.fx.Node) -> tuple[int | None, ...] | None:
    """Sizes, with None for dynamic ones, whose symbols differ between programs."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return None
    return tuple(size if isinstance(size, int) else None for size in value.shape)
