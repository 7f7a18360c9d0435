"""Averages over whole rows or columns of images, of which Arm's passes make slices and one pooling for each of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from lowerdeck.graph.retracing import called

if TYPE_CHECKING:
    from torch.fx import GraphModule

_aten = torch.ops.aten


def average_at_once(module: GraphModule) -> None:
    """Make means of adaptive average poolings of an ATen program that reduce one dimension and keep the other.

    Coordinate attention and pooling of strips have them. Means have a range of their own, which is smaller.
    """
    for node in module.graph.find_nodes(op="call_function", target=_aten.adaptive_avg_pool2d.default):
        before, after = (each.meta["val"].shape[-2:] for each in (node.args[0], node))
        if not all(isinstance(size, int) for size in (*before, *after)):
            continue
        reduced = [dim for dim, size, pooled in zip((-2, -1), before, after, strict=True) if pooled == 1 != size]
        kept = [dim for dim, size, pooled in zip((-2, -1), before, after, strict=True) if pooled == size]
        if len(reduced) == len(kept) == 1:
            with module.graph.inserting_before(node):
                node.replace_all_uses_with(called(node, _aten.mean.dim, node.args[0], reduced, True))
            module.graph.erase_node(node)
    module.recompile()
