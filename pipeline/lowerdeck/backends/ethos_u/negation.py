"""Negation, which TOSA has for one scale alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from lowerdeck.graph.retracing import called

if TYPE_CHECKING:
    from torch.fx import GraphModule

_aten = torch.ops.aten


def negate_by_product(module: GraphModule) -> None:
    """Multiply by -1 where an ATen program negates floats.

    TOSA's NEGATE does not rescale, and quantizers observe its operand and its result apart: what was cropped of the
    operand, for example, widens its range alone.
    """
    for node in module.graph.find_nodes(op="call_function", target=_aten.neg.default):
        if node.meta["val"].is_floating_point():
            with module.graph.inserting_before(node):
                node.replace_all_uses_with(called(node, _aten.mul.Tensor, node.args[0], -1.0))
            module.graph.erase_node(node)
    module.recompile()
