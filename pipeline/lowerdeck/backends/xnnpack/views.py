"""Views of tensors whose size varies, in the form that XNNPACK takes."""

from __future__ import annotations

import torch
from executorch.exir.dialects._ops import ops
from torch.fx.passes.infra.pass_base import PassResult


def infer_varying_sizes(graph_module: torch.fx.GraphModule) -> PassResult:
    """Write -1 where a view takes the one size that varies as an argument: it follows from the number of elements.

    torch.export computes such a size in the graph, e.g. the batch for a `flatten(1)`. XNNPACK takes no size as an
    argument, so that every such view would end a partition.
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
