"""Logarithms of a softmax, which Arm's passes take of its integers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torchao.quantization.pt2e.quantizer.quantizer import Q_ANNOTATION_KEY

from lowerdeck.graph.retracing import called

if TYPE_CHECKING:
    from torch.fx import GraphModule

_aten = torch.ops.aten


def log_softmax_by_sum(module: GraphModule) -> None:
    """Make `d - log(sum(exp(d)))` of log_softmax in an ATen program, where d is the distance to the largest score.

    A softmax of 8 bits is 0 below 1/512, where its logarithm says nothing about the score.
    One that is annotated stays: a mask is in front of it, or the configuration keeps it in float.
    """
    for node in module.graph.find_nodes(op="call_function", target=_aten.log_softmax.int):
        if Q_ANNOTATION_KEY in node.meta:
            continue
        scores, dim = node.args[:2]
        with module.graph.inserting_before(node):
            if scores.meta["val"].dtype != node.meta["val"].dtype:
                scores = called(node, _aten.to.dtype, scores, node.meta["val"].dtype)
            distance = called(node, _aten.sub.Tensor, scores, called(node, _aten.amax.default, scores, [dim], True))
            total = called(node, _aten.sum.dim_IntList, called(node, _aten.exp.default, distance), [dim], True)
            made = called(node, _aten.sub.Tensor, distance, called(node, _aten.log.default, total))
        node.replace_all_uses_with(made)
        module.graph.erase_node(node)
    module.recompile()
