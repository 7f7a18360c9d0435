"""Copies tensors in channels-last memory before ExecuTorch gives their memory another shape."""

from __future__ import annotations

import torch
from executorch.exir.dialects._ops import ops as exir_ops
from torch.fx.passes.infra.pass_base import PassResult


def copy_before_views(module: torch.fx.GraphModule) -> PassResult:
    """Insert a copy in contiguous memory before every `view_copy` of a tensor that is not contiguous.

    ExecuTorch lets the result of `view_copy` share its operand's memory (ReplaceViewCopyWithViewPass), which puts the
    elements in another order where that is channels-last. PyTorch's `reshape` copies where strides cannot express the
    result; unflattened channels, `stack` and a channel shuffle are views in PyTorch, and arrive here without a copy.
    """
    graph, modified = module.graph, False
    for node in graph.find_nodes(op="call_function", target=exir_ops.edge.aten.view_copy.default):
        source = node.args[0]
        if source.meta["val"].is_contiguous():
            continue
        modified, rank = True, source.meta["val"].ndim
        with graph.inserting_before(node):
            copied = graph.call_function(
                exir_ops.edge.dim_order_ops._clone_dim_order.default, (source,), {"dim_order": list(range(rank))}
            )
        copied.meta = {**node.meta, "val": source.meta["val"].contiguous()}
        node.replace_input_with(source, copied)
    if modified:
        module.recompile()
    return PassResult(module, modified)
