"""Operators that partitioners preserve for a delegate and ExecuTorch has no CPU kernel for, as those that it has."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from executorch.exir.dialects._ops import ops as exir_ops

from lowerdeck.contracts.plan import Reason
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


def _max_pool2d(call: _Call, x: Node, *arguments: Any) -> Node:
    """The pooling whose indices nobody reads."""
    return call(operator.getitem, call(_edge.max_pool2d_with_indices.default, x, *arguments), 0)


_DECOMPOSED = {
    "aten.hardsigmoid.default": _hardsigmoid,
    "aten.hardswish.default": _hardswish,
    "aten.max_pool2d.default": _max_pool2d,
    "aten.silu.default": _silu,
}


def can_decompose(node: Node) -> bool:
    """Whether `decompose` knows the operator that `node` calls, for which there is no CPU kernel."""
    return operator_name(node) in _DECOMPOSED


def decompose(node: Node) -> list[Node]:
    """Replace `node` of an edge program by operators that have CPU kernels; return their nodes."""
    graph, replacing = node.graph, list[torch.fx.Node]()

    def call(called: Any, *arguments: Any) -> Node:
        values = [each.meta["val"] if isinstance(each, torch.fx.Node) else each for each in arguments]
        made = graph.call_function(called, arguments)
        made.meta = {**node.meta, "val": called(*values)}
        replacing.append(made)
        return made

    with graph.inserting_before(node):
        replaced: Callable[..., Node] = _DECOMPOSED[operator_name(node)]
        made = replaced(call, *node.args)
    node.replace_all_uses_with(made)
    graph.erase_node(node)
    return replacing


def decompose_faulty(program: ExportedProgram, faulty: Mapping[str, Reason]) -> dict[str, Reason]:
    """Decompose operators that stay on the CPU, which has no kernel for them, in an edge program itself.

    Args:
        program: The edge program; modified.
        faulty: Nodes that the delegate computes wrongly or does not compile, each with its reason.

    Returns:
        `faulty` with the nodes that such a node became, which have its reason.
    """
    reasons = dict(faulty)
    for node in list(program.graph.nodes):
        if node.name in faulty and can_decompose(node):
            reason = reasons.pop(node.name)
            reasons |= dict.fromkeys([made.name for made in decompose(node)], reason)
    if reasons.keys() != faulty.keys():
        program.graph_module.recompile()
    return reasons
