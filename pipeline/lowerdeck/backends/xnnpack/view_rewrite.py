"""Rewrites views of tensors with a varying size to the form that XNNPACK supports."""

from __future__ import annotations

import torch
from executorch.exir.dialects._ops import ops
from torch.fx.passes.infra.pass_base import PassResult


def infer_varying_sizes(graph_module: torch.fx.GraphModule) -> PassResult:
    """Replace the only varying size in the arguments of a view by -1: it follows from the number of elements.

    torch.export computes such a size in the graph, e.g. the batch for a `flatten(1)`. XNNPACK does not accept sizes as
    arguments, so every such view would end a partition.
    """
    graph, modified = graph_module.graph, False
    for node in graph.nodes:
        if node.target is not ops.edge.aten.view_copy.default:
            continue
        source, sizes = node.args
        varying = [index for index, size in enumerate(sizes) if isinstance(size, torch.fx.Node)]
        if len(varying) == 1 and -1 not in sizes:
            node.args = (source, [-1 if index in varying else size for index, size in enumerate(sizes)])
            modified = True
    if modified:
        graph.eliminate_dead_code()
        graph_module.recompile()
    return PassResult(graph_module, modified)
