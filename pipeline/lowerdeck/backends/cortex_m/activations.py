"""Activations that ExecuTorch preserves for CMSIS-NN and has no portable kernel for."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from executorch.exir.dialects._ops import ops as exir_ops
from executorch.exir.pass_base import ExportedProgramPassBase, ExportedProgramPassResult

from lowerdeck.graph.nodes import operator_name

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Node

_edge = exir_ops.edge.aten
_Call = Callable[..., "Node"]


def _hardsigmoid(call: _Call, x: Node) -> Node:
    """clamp(x + 3, 0, 6) / 6, as torch.nn.Hardsigmoid defines it."""
    return call(_edge.div.Scalar, call(_edge.clamp.default, call(_edge.add.Scalar, x, 3), 0, 6), 6)


def _hardswish(call: _Call, x: Node) -> Node:
    """x * clamp(x + 3, 0, 6) / 6, as torch.nn.Hardswish defines it."""
    clamped = call(_edge.clamp.default, call(_edge.add.Scalar, x, 3), 0, 6)
    return call(_edge.div.Scalar, call(_edge.mul.Tensor, x, clamped), 6)


def _silu(call: _Call, x: Node) -> Node:
    """x * sigmoid(x), as torch.nn.SiLU defines it."""
    return call(_edge.mul.Tensor, x, call(_edge.sigmoid.default, x))


_DECOMPOSED = {
    "aten.hardsigmoid.default": _hardsigmoid,
    "aten.hardswish.default": _hardswish,
    "aten.silu.default": _silu,
}


def has_no_portable_kernel(node: Node) -> bool:
    """Whether `node` calls an operator that CMSIS-NN alone computes."""
    return operator_name(node) in _DECOMPOSED


class DecomposeRefused(ExportedProgramPassBase):  # type: ignore[misc]  # ExecuTorch is untyped
    """Decomposes activations of an edge program that CMSIS-NN does not compute where they are.

    A hard sigmoid becomes the bounds of its layer only where its quantization begins at 0 and ends at 1, which it
    does not if it shares it, as in front of a concatenation. Whether ExecuTorch decomposes an operator is asked
    before the passes that decide this can be tried.
    """

    def __init__(self, refused: Callable[[ExportedProgram], frozenset[str]]) -> None:
        """Describe the pass.

        Args:
            refused: Returns the names of nodes of an edge program that CMSIS-NN does not compute.
        """
        self._refused = refused

    def call(self, exported_program: ExportedProgram) -> ExportedProgramPassResult:
        """Decompose them in the program itself."""
        preserved = list(filter(has_no_portable_kernel, exported_program.graph.nodes))
        refused = self._refused(exported_program) if preserved else frozenset[str]()
        decomposed = [node for node in preserved if node.name in refused]
        for node in decomposed:
            _decompose(node)
        exported_program.graph_module.recompile()
        return ExportedProgramPassResult(exported_program, bool(decomposed))


def _decompose(node: Node) -> None:
    """Replace `node` by operators that have portable kernels."""
    graph = node.graph

    def call(operator: Any, *arguments: Any) -> Node:
        values = [each.meta["val"] if isinstance(each, torch.fx.Node) else each for each in arguments]
        made = graph.call_function(operator, arguments)
        made.meta = {**node.meta, "val": operator(*values)}
        return made

    with graph.inserting_before(node):
        made = _DECOMPOSED[operator_name(node)](call, node.all_input_nodes[0])
    node.replace_all_uses_with(made)
    graph.erase_node(node)
