"""Executes an exported program in PyTorch and returns the values of some of its nodes."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx.node import map_arg

from lowerdeck.graph.fake_quantization import attribute, constant_dequantizes, equivalent
from lowerdeck.graph.io_boundary import input_dtypes
from lowerdeck.graph.nodes import STATIC_QUANTIZE, operator_name

if TYPE_CHECKING:
    from torch.export import ExportedProgram


_WIDER = {1: torch.int16, 2: torch.int32}
"""Integers with room for a step more than those of so many bytes; tensors of 64 bits would take twice the time."""
_PLACES = 1 << 16
"""Places from which on a tensor's steps are taken out of those that are drawn, so that few tensors share them."""


class RoundingSteps:
    """Seeded steps, of -1, 0 and 1, by which integers may be rounded in another way."""

    def __init__(self, seed: int, *, mildness: int = 1) -> None:
        """Draw nothing yet.

        Args:
            seed: The same steps are drawn for a seed.
            mildness: Of 2 * mildness + 1 integers, two take a step.
        """
        self._generator = torch.Generator().manual_seed(seed)
        self._mildness = mildness
        self._drawn = torch.empty(0, dtype=torch.int8)

    def like(self, integers: torch.Tensor) -> torch.Tensor:
        """A step for each of `integers`, int8 in their shape.

        Tensors share what is drawn, each from a random place on: to draw for each of them takes several times as long
        as to execute a convolutional network.
        """
        count = integers.numel()
        if len(self._drawn) < count + _PLACES:
            limit, number = self._mildness, count + _PLACES
            drawn = torch.randint(-limit, limit + 1, (number,), generator=self._generator, dtype=torch.int8)
            self._drawn = drawn.div_(limit, rounding_mode="trunc")
        first = int(torch.randint(len(self._drawn) - count + 1, (), generator=self._generator))
        return self._drawn[first : first + count].view(integers.shape)


class NodeValues:
    """An ATen or edge program that returns the results of some of its nodes.

    It interprets the program's graph as it is: `ExportedProgram.module()` would copy it first, which takes longer than
    one execution of most networks.
    """

    def __init__(
        self,
        program: ExportedProgram,
        names: Container[str],
        *,
        keeps_state: bool = False,
    ) -> None:
        """Prepare `program` for execution.

        Args:
            program: The program.
            names: Names of the nodes in its graph.
            keeps_state: Whether state lasts from call to call; otherwise every call starts with its initial values.
        """
        self._program, self._names = program, names
        self._dtypes = input_dtypes(program)
        self._last_users = _by_last_user(program.graph)
        self._constant = frozenset(constant_dequantizes(self._constants()))
        self._shared: dict[torch.fx.Node, Any] = {}
        self._keeps_state = keeps_state
        self._state: dict[str, torch.Tensor] = {}

    def __call__(
        self, inputs: Sequence[torch.Tensor], rounding: RoundingSteps | None = None
    ) -> dict[str, torch.Tensor]:
        """The results by node name.

        Args:
            inputs: Are rounded to the dtypes of the program's inputs.
            rounding: Added to the integers that quantize nodes compute: what may become of the values if operators
                round in another way. None to leave them as they are.
        """
        given = [value.to(dtype) for value, dtype in zip(inputs, self._dtypes, strict=True)]
        results: dict[str, torch.Tensor] = {}
        with torch.no_grad():
            outputs = self._execute(self._arguments(iter(given)), results, rounding)
        if self._keeps_state:
            for spec, output in zip(self._program.graph_signature.output_specs, outputs, strict=True):
                if spec.kind is OutputKind.BUFFER_MUTATION:
                    assert spec.target is not None, "a mutation names its buffer"
                    self._state[spec.target] = output.clone()
        return results

    def _execute(
        self, arguments: Iterator[Any], results: dict[str, torch.Tensor], rounding: RoundingSteps | None
    ) -> Any:
        """What the program returns. torch.fx.Interpreter would take as long again as the operators of small layers."""
        values: dict[torch.fx.Node, Any] = {}
        for node in self._program.graph.nodes:
            value = next(arguments) if node.op == "placeholder" else self._computed(node, values, rounding)
            if node.op == "output":
                return value
            if node.name in self._names and isinstance(value, torch.Tensor):
                results[node.name] = value.clone()  # an in-place operator may change it later
            values[node] = value
            for unused in self._last_users.get(node, ()):
                del values[unused]
        raise AssertionError("a graph ends with its output")

    def _computed(self, node: torch.fx.Node, values: dict[torch.fx.Node, Any], rounding: RoundingSteps | None) -> Any:
        if node.op == "get_attr":
            return attribute(self._program.graph_module, node)
        if node in self._shared:
            return self._shared[node]
        args = map_arg(node.args, values.__getitem__)
        if node.op == "output":
            return args[0]
        result = equivalent(node.target)(*args, **map_arg(node.kwargs, values.__getitem__))
        if node in self._constant:
            self._shared[node] = result
        if rounding is not None and _is_quantize(node):
            limits, wider = torch.iinfo(result.dtype), _WIDER.get(result.itemsize, torch.int64)
            result = (result.to(wider) + rounding.like(result)).clamp_(limits.min, limits.max).to(result.dtype)
        return result

    def _constants(self) -> Iterator[torch.fx.Node]:
        """The placeholders whose values no call changes."""
        signature = self._program.graph_signature
        placeholders = self._program.graph.find_nodes(op="placeholder")
        for node, spec in zip(placeholders, signature.input_specs, strict=True):
            if spec.kind is not InputKind.USER_INPUT and spec.target not in signature.buffers_to_mutate.values():
                yield node

    def _arguments(self, inputs: Iterator[torch.Tensor]) -> Iterator[Any]:
        """The values of all placeholders: parameters, buffers and constants of the program, and the inputs."""
        program = self._program
        for spec in program.graph_signature.input_specs:
            if spec.kind is InputKind.USER_INPUT:
                yield next(inputs)
            else:
                assert spec.target is not None, "only inputs have no target"
                initial = program.state_dict.get(spec.target, program.constants.get(spec.target))
                stored = self._state.get(spec.target, initial)
                # An in-place operator may write it.
                yield stored.clone() if isinstance(stored, torch.Tensor) and spec.kind is InputKind.BUFFER else stored


def _by_last_user(graph: torch.fx.Graph) -> dict[torch.fx.Node, list[torch.fx.Node]]:
    """Node -> those whose values no later node takes; its own where nothing takes it."""
    last = {used: node for node in graph.nodes for used in (node, *node.all_input_nodes)}
    unused: dict[torch.fx.Node, list[torch.fx.Node]] = {}
    for used, node in last.items():
        unused.setdefault(node, []).append(used)
    return unused


def _is_quantize(node: torch.fx.Node) -> bool:
    return node.op == "call_function" and operator_name(node).startswith(STATIC_QUANTIZE)
