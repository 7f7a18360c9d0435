"""What a partition replaces: a subgraph of the edge program, executed in PyTorch."""

from __future__ import annotations

import operator
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from executorch.exir.lowered_backend_module import LoweredBackendModule, get_lowered_submodules
from torch.fx import Node

from lowerdeck.conformance.errors import OF_INTEGERS, precision_of_types
from lowerdeck.graph.nodes import (
    DELEGATION_TAG,
    DEQUANTIZE,
    QUANTIZE,
    aten_operator,
    constant_names,
    is_compute,
    operator_name,
)
from lowerdeck.graph.state import state_nodes

if TYPE_CHECKING:
    from torch.export import ExportedProgram

_INTEGERS = (torch.int8, torch.uint8, torch.int16)
_MOST_AT_AN_END = 8
"""Elements of a drawn input at each end of its range."""


@dataclass(frozen=True)
class Subgraph:
    """The part of an edge program that one compiled partition replaces."""

    lowered: LoweredBackendModule
    """ExecuTorch's module with the original nodes and the delegate's payload."""
    sources: tuple[str, ...]
    """For each of `inputs` the node of the edge program whose value it takes. An input from another partition that was
    lowered before has a name of its own."""
    constants: Collection[str] = frozenset()
    """Names of the edge program's constants, of which some may be among `sources`."""

    @property
    def program(self) -> ExportedProgram:
        """The original nodes, with those of other parts as inputs."""
        program: ExportedProgram = self.lowered.original_module
        return program

    @cached_property
    def depth(self) -> int:
        """Number of roundings in succession."""
        return depth_of(self.program.graph)

    @cached_property
    def tag(self) -> str:
        """The partition's tag in the delegation plan; ExecuTorch keeps it in the nodes."""
        tags = (node.meta.get(DELEGATION_TAG) for node in self.program.graph.nodes if node.op == "call_function")
        return next(filter(None, tags), "")

    @property
    def payload(self) -> bytes:
        """The compiled partition, as it is in the `.pte`."""
        payload: bytes = self.lowered.processed_bytes
        return payload

    @cached_property
    def nodes(self) -> frozenset[str]:
        """Names of its operators, which identify it however partitions are numbered."""
        return frozenset(node.name for node in self.program.graph.nodes if node.op == "call_function")

    @property
    def inputs(self) -> list[Node]:
        """Placeholders of the values that other parts compute."""
        placeholders = {node.name: node for node in self.program.graph.nodes if node.op == "placeholder"}
        return [placeholders[str(name)] for name in self.program.graph_signature.user_inputs]

    @property
    def outputs(self) -> list[Node]:
        """The nodes whose results other parts use."""
        outputs = self.program.graph.output_node().args[0]
        assert isinstance(outputs, (list, tuple))
        return [node for node in outputs if isinstance(node, Node)]

    @property
    def is_static(self) -> bool:
        """Whether all inputs and outputs have sizes that are known before execution."""
        sizes = (size for node in (*self.inputs, *self.outputs) for size in node.meta["val"].shape)
        return all(isinstance(size, int) for size in sizes)

    def synthetic_inputs(self, seen: Sequence[Sequence[torch.Tensor]], seed: int) -> list[list[torch.Tensor]]:
        """Inputs that reach both ends of their ranges.

        Integers that are dequantized are drawn from the range of their quantization, floats between the extremes in
        `seen`. Up to half of the elements are at the ends themselves, because a sum of a few drawn elements rarely
        comes near its ends; of many, only some are, because what lies between shows other faults. Other inputs are
        those of the first sample, because indices have a meaning, and so are constants: pieces of the partition may
        have them inside.

        Args:
            seen: Values of the inputs for every sample.
            seed: Of the random numbers.

        Returns:
            One drawing of all inputs. Where one of them has a single element, another one, in which it is at its other
            end.
        """
        generator = torch.Generator().manual_seed(seed)
        is_single = any(value.numel() == 1 and self._is_drawn(index, value) for index, value in enumerate(seen[0]))
        return [self._drawn(seen, generator, is_upper_first) for is_upper_first in (False, True)[: 1 + is_single]]

    def _is_drawn(self, index: int, value: torch.Tensor) -> bool:
        """Whether an input is no index and no constant."""
        is_number = value.is_floating_point() or _quantized_limits(self.inputs[index]) is not None
        return is_number and self.sources[index] not in self.constants

    def _drawn(
        self, seen: Sequence[Sequence[torch.Tensor]], generator: torch.Generator, is_upper_first: bool
    ) -> list[torch.Tensor]:
        """One drawing, whose inputs of a single element are at their upper or lower ends."""
        made = []
        for index, node in enumerate(self.inputs):
            values = [sample[index] for sample in seen]
            first, quantized = values[0], _quantized_limits(node)
            if not self._is_drawn(index, first):
                made.append(first)
                continue
            low, high = quantized or _extremes(values)
            if quantized is None:
                drawn = torch.rand(first.shape, generator=generator) * (high - low) + low
            else:
                drawn = torch.randint(quantized[0], quantized[1] + 1, first.shape, generator=generator)
            count = max(1, min(first.numel() // 4, _MOST_AT_AN_END))
            places = torch.randperm(first.numel(), generator=generator)
            ends = (high, low) if is_upper_first else (low, high)
            for end, chosen in zip(ends, (places[:count], places[count : 2 * count]), strict=True):
                drawn.view(-1)[chosen] = end
            made.append(drawn.to(first.dtype))
        return made


def subgraphs(lowered: ExportedProgram) -> list[Subgraph]:
    """The parts that the delegates of a lowered edge program replace, in the program's order."""
    constants = constant_names(lowered).difference(map(str, state_nodes(lowered)))
    outputs: dict[Node, list[str]] = {}
    """Calls of delegates, with the names that their outputs had."""

    def source(value: Node) -> str:
        if value.target is operator.getitem:
            container, index = value.args
            if isinstance(container, Node) and isinstance(index, int) and container in outputs:
                return outputs[container][index]
        return value.name

    found = []
    for _, module, call in get_lowered_submodules(lowered.graph_module):
        part = Subgraph(
            module, tuple(source(value) for value in call.all_input_nodes if value.op != "get_attr"), constants
        )
        outputs[call] = [node.name for node in part.outputs]
        found.append(part)
    return found


def _quantized_limits(input_: Node) -> tuple[int, int] | None:
    """Smallest and largest integer of an input that is only dequantized; None for other inputs."""
    users = [user for user in input_.users if user.op == "call_function"]
    dtype = input_.meta["val"].dtype
    if dtype not in _INTEGERS or not users or not all(operator_name(user).startswith(DEQUANTIZE) for user in users):
        return None
    lows, highs = [torch.iinfo(dtype).min], [torch.iinfo(dtype).max]
    for user in users:
        names = (argument.name for argument in aten_operator(user.target)._schema.arguments)
        given = dict(zip(names, user.args, strict=False)) | user.kwargs
        lows += [given["quant_min"]] if isinstance(given.get("quant_min"), int) else []
        highs += [given["quant_max"]] if isinstance(given.get("quant_max"), int) else []
    return max(lows), min(highs)


def _extremes(values: Sequence[torch.Tensor]) -> tuple[float, float]:
    return min(float(value.min()) for value in values), max(float(value.max()) for value in values)


def scale_of(output: Node) -> float | None:
    """One step of an output's quantization in its own units (1 for integers themselves), None where it has none."""
    if output.meta["val"].dtype in _INTEGERS:
        return 1.0
    is_per_tensor = output.op == "call_function" and operator_name(output).endswith("dequantize_per_tensor.default")
    return float(output.args[1]) if is_per_tensor else None  # type: ignore[arg-type]


def precision_of(graph: torch.fx.Graph) -> float:
    """The relative error that one rounding in it explains, of values without a quantization."""
    called = [node for node in graph.nodes if node.op == "call_function"]
    if any(operator_name(node).startswith((*QUANTIZE, *DEQUANTIZE)) for node in called):
        return OF_INTEGERS
    values = (node.meta.get("val") for node in called)
    return precision_of_types(value.dtype for value in values if isinstance(value, torch.Tensor))


def depth_of(graph: torch.fx.Graph) -> int:
    """The most quantize nodes on a path, or, in a graph without any, the most computing nodes."""
    depth: dict[torch.fx.Node, tuple[int, int]] = {}
    most_quantized = most_computing = 0
    for node in graph.nodes:
        quantized, computing = (
            max((depth[source][index] for source in node.all_input_nodes), default=0) for index in (0, 1)
        )
        if node.op == "call_function":
            quantized += operator_name(node).startswith(QUANTIZE)
            computing += is_compute(node)
        depth[node] = (quantized, computing)
        most_quantized, most_computing = max(most_quantized, quantized), max(most_computing, computing)
    return most_quantized or most_computing
