"""Executes an exported program in PyTorch and returns the values of some of its nodes."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.export.graph_signature import InputKind, OutputKind

from lowerdeck.graph.fake_quantization import constant_dequantizes, equivalent
from lowerdeck.graph.io_boundary import input_dtypes
from lowerdeck.graph.nodes import STATIC_QUANTIZE, operator_name

if TYPE_CHECKING:
    from torch.export import ExportedProgram


class NodeValues:
    """An ATen or edge program that returns the results of some of its nodes.

    It interprets the program's graph as it is: `ExportedProgram.module()` would copy it first, which takes longer than
    one execution of most networks.
    """

    def __init__(
        self,
        program: ExportedProgram,
        names: Container[str],
        rounding: torch.Generator | None = None,
        *,
        keeps_state: bool = False,
    ) -> None:
        """Prepare `program` for execution.

        Args:
            program: The program.
            names: Names of the nodes in its graph.
            rounding: Draws -1, 0 or 1 for every integer that a quantize node computes, and adds it: what may become of
                the values if every operator rounds in another way. None to leave them as they are.
            keeps_state: Whether state lasts from call to call; otherwise every call starts with its initial values.
        """
        self._program = program
        self._results: dict[str, torch.Tensor] = {}
        self._dtypes = input_dtypes(program)
        results, shared = self._results, dict[torch.fx.Node, Any]()
        constant = frozenset(constant_dequantizes(self._constants()))

        class Interpreter(torch.fx.Interpreter):
            def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
                return super().call_function(equivalent(target), args, kwargs)

            def run_node(self, node: torch.fx.Node) -> Any:
                if node in constant and node not in shared:
                    shared[node] = super().run_node(node)
                result = shared[node] if node in constant else super().run_node(node)
                if rounding is not None and _is_quantize(node):
                    limits = torch.iinfo(result.dtype)
                    steps = torch.randint(-1, 2, result.shape, generator=rounding)
                    result = (result.to(torch.int64) + steps).clamp(limits.min, limits.max).to(result.dtype)
                if node.name in names and isinstance(result, torch.Tensor):
                    results[node.name] = result.clone()  # an in-place operator may change it later
                return result

        self._interpreter = Interpreter(program.graph_module)
        self._keeps_state = keeps_state
        self._state: dict[str, torch.Tensor] = {}

    def __call__(self, inputs: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
        """The results by node name for `inputs`, which are rounded to the dtypes of the program's inputs."""
        self._results.clear()
        given = [value.to(dtype) for value, dtype in zip(inputs, self._dtypes, strict=True)]
        with torch.no_grad():
            outputs = self._interpreter.run(*self._arguments(iter(given)))
        if self._keeps_state:
            for spec, output in zip(self._program.graph_signature.output_specs, outputs, strict=True):
                if spec.kind is OutputKind.BUFFER_MUTATION:
                    assert spec.target is not None, "a mutation names its buffer"
                    self._state[spec.target] = output.clone()
        return dict(self._results)

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


def _is_quantize(node: torch.fx.Node) -> bool:
    return node.op == "call_function" and operator_name(node).startswith(STATIC_QUANTIZE)
