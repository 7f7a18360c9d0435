"""Compares whole programs: the edge program with the quantized one, and the `.pte` with the edge program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING

import torch

from lowerdeck.conformance.errors import output_error
from lowerdeck.conformance.partitions import ROUNDING_DRAWS, Inputs, Values, returned_nodes, rounding_noise
from lowerdeck.conformance.subgraphs import depth_of, precision_of, scale_of
from lowerdeck.contracts.conformance import OutputError
from lowerdeck.graph.modules import module_path
from lowerdeck.graph.node_origins import history
from lowerdeck.graph.node_values import NodeValues
from lowerdeck.graph.nodes import STATIC_DEQUANTIZE, operator_name
from lowerdeck.graph.source_lines import source_line

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from lowerdeck.conformance.errors import Pair
    from lowerdeck.contracts.conformance import PartitionConformance


@dataclass(frozen=True, kw_only=True)
class Deviation:
    """A program that computes something else than the one that it was made from."""

    output: OutputError
    """The output with the largest error relative to its bound."""
    node: str
    """The first node that deviates; empty where none is found."""
    place: str
    """Its operator, module and source line, as far as they are known."""

    def __str__(self) -> str:
        found = f"; the first to deviate is {self.node} ({self.place})" if self.node else ""
        return f"{self.output}{found}"


def edge_deviation(quantized: ExportedProgram, edge: ExportedProgram, samples: Sequence[Inputs]) -> Deviation | None:
    """How the edge program deviates from the quantized program; None where rounding explains the difference.

    Args:
        quantized: The quantized ATen program.
        edge: What partition made of it with the backend's passes.
        samples: Inputs of the model to try.
    """
    ours, theirs = returned_nodes(edge), returned_nodes(quantized)
    names = {node.name for node in ours}, {node.name for node in theirs}
    actual, expected = (
        list(map(NodeValues(program, wanted, keeps_state=True), samples))
        for program, wanted in zip((edge, quantized), names, strict=True)
    )
    errors = [
        output_error(
            node.name,
            [(before[source.name], after[node.name]) for before, after in zip(expected, actual, strict=True)],
            scale_of(node),
            depth_of(edge.graph),
            precision=precision_of(edge.graph),
        )
        for node, source in zip(ours, theirs, strict=True)
    ]
    worst = max(errors, key=lambda error: error.excess, default=None)
    if worst is None or worst.excess <= 1:
        return None
    first = _first_deviating(quantized, edge, samples[0])
    if first is None:
        return Deviation(output=worst, node="", place="")
    known = (operator_name(first), module_path(first), source_line(first.meta.get("stack_trace")))
    return Deviation(output=worst, node=first.name, place=", ".join(filter(None, known)))


def program_errors(
    execute: Callable[[Sequence[Inputs]], Sequence[Inputs]],
    edge: ExportedProgram,
    samples: Sequence[Inputs],
    expected: Sequence[Values],
    scales: Sequence[float | None],
    partitions: Sequence[PartitionConformance] = (),
) -> tuple[OutputError, ...]:
    """Errors of a `.pte` relative to the edge program that it was lowered from.

    Args:
        execute: The program: its outputs for the inputs of consecutive calls, from its initial state on.
        edge: The edge program before lowering.
        samples: Inputs of the model to try, in consecutive calls: state is checked by what the next call returns.
        expected: What the edge program computes for `samples`: `boundary_values`.
        scales: One step of each output's quantization, None where it has none.
        partitions: What was found about partitions: bounds of what they return hold for outputs that are these integers
            or made of them alone, so that the edge program need not be executed with other roundings again.
    """
    outputs = returned_nodes(edge)
    known = {error.output: error for found in partitions for error in found.outputs}
    results = execute(samples)

    @cache
    def rounded(draw: int) -> list[Values]:
        execute, steps = NodeValues(edge, {node.name for node in outputs}, keeps_state=True), rounding_noise(draw)
        return [execute(sample, steps) for sample in samples]

    def rounded_output(name: str, draw: int, place: int) -> Pair:
        return expected[place][name], rounded(draw)[place][name]

    return tuple(
        output_error(
            node.name,
            [(wanted[node.name], actual[index]) for wanted, actual in zip(expected, results, strict=True)],
            scale,
            depth_of(edge.graph),
            precision=precision_of(edge.graph),
            known=known.get(_integers(node).name),
            rounded=[partial(rounded_output, node.name, draw) for draw in range(ROUNDING_DRAWS)],
        )
        for index, (node, scale) in enumerate(zip(outputs, scales, strict=True))
    )


def _integers(node: torch.fx.Node) -> torch.fx.Node:
    """What a dequantization reads; of another node, itself."""
    is_dequantize = node.op == "call_function" and operator_name(node).startswith(STATIC_DEQUANTIZE)
    return node.all_input_nodes[0] if is_dequantize else node


def _first_deviating(quantized: ExportedProgram, edge: ExportedProgram, sample: Inputs) -> torch.fx.Node | None:
    """The first node of the edge program whose value differs from that of the node that it was made from."""
    expected = NodeValues(quantized, {node.name for node in quantized.graph.nodes})(sample)
    actual = NodeValues(edge, {node.name for node in edge.graph.nodes})(sample)
    nodes: list[torch.fx.Node] = list(edge.graph.nodes)
    for node in nodes:
        if node.op != "call_function" or node.name not in actual:
            continue
        source = next((str(source.name) for source in history(node) if source.name in expected), None)
        if source is None or expected[source].shape != actual[node.name].shape:
            continue
        pair = (expected[source], actual[node.name])
        error = output_error(
            node.name, [pair], scale_of(node), depth_of(edge.graph), precision=precision_of(edge.graph)
        )
        if error.excess > 1:
            return node
    return None
