"""Matrix products in the form that NXP's quantizer and converters have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch.fx import Graph, Node

_aten = torch.ops.aten
_MATRICES = 3
"""Dimensions of a batch of matrices."""


def use_bmm(graph: Graph) -> None:
    """Write products `a @ b` of equally many matrices as `torch.bmm`, which NXP has; others stay.

    Products in more than 3 dimensions, as of several heads of an attention, become one batch between reshapes.
    """
    for node in [node for node in graph.nodes if node.target is _aten.matmul.default]:
        left, right = (tuple(operand.meta["val"].shape) for operand in node.args)
        if len(left) < _MATRICES or left[:-2] != right[:-2]:
            continue
        if len(left) == _MATRICES:
            node.target = _aten.bmm.default
            continue
        with graph.inserting_before(node):
            operands = [
                _called(graph, node, _aten.reshape.default, operand, [-1, *shape[-2:]])
                for operand, shape in zip(node.args, (left, right), strict=True)
            ]
            product = _called(graph, node, _aten.bmm.default, *operands)
            whole = _called(graph, node, _aten.reshape.default, product, [*left[:-1], right[-1]])
        node.replace_all_uses_with(whole)
        graph.erase_node(node)


def _called(graph: Graph, origin: Node, operator: Any, *arguments: Any) -> Node:
    """A call in the place of `origin`, with its origin in the model."""
    values = [argument.meta["val"] if isinstance(argument, torch.fx.Node) else argument for argument in arguments]
    node = graph.call_function(operator, arguments)
    node.meta = {**origin.meta, "val": operator(*values)}
    return node
