"""Copies tensors where the layout of their memory is not the one that a kernel takes."""

from __future__ import annotations

import torch
from executorch.exir.dialects._ops import ops as exir_ops
from torch.fx.passes.infra.pass_base import PassResult

from lowerdeck.graph.nodes import DEQUANTIZE, operator_name

_edge = exir_ops.edge.aten
_OF_ONE_LAYOUT = (
    *(_edge.add.Tensor, _edge.sub.Tensor, _edge.mul.Tensor, _edge.div.Tensor),
    *(_edge.maximum.default, _edge.minimum.default),
)
"""Operators whose kernels read all operands in the order of their memory, or refuse those of different layouts."""


def settle_layouts(module: torch.fx.GraphModule) -> PassResult:
    """Insert copies into another layout.

    - In front of every `view_copy` of a tensor that is not contiguous. ExecuTorch lets the result share its operand's
      memory (ReplaceViewCopyWithViewPass), which puts the elements in another order where that is channels-last.
      PyTorch's `reshape` copies where strides cannot express the result; unflattened channels, `stack` and a channel
      shuffle are views in PyTorch, and arrive here without a copy.
    - Of an operand that has another layout than the result of an operation of two tensors.
    """
    modified = False
    for node in list(module.graph.nodes):
        if node.target == _edge.view_copy.default and not node.args[0].meta["val"].is_contiguous():
            _copy(node, node.args[0], torch.contiguous_format)
            modified = True
        if node.target in _OF_ONE_LAYOUT and node.meta["val"].ndim == 4:
            layout = _layout(node.meta["val"])
            for operand in node.all_input_nodes:
                value = operand.meta["val"]
                if value.ndim == 4 and layout is not None and not value.is_contiguous(memory_format=layout):
                    _copy(node, operand, layout)
                    modified = True
    if modified:
        module.recompile()
    return PassResult(module, modified)


def _layout(value: torch.Tensor) -> torch.memory_format | None:
    """The only one that the tensor is contiguous in; None where there are several, or none."""
    formats = (torch.contiguous_format, torch.channels_last)
    found = [each for each in formats if value.is_contiguous(memory_format=each)]
    return found[0] if len(found) == 1 else None


def _copy(node: torch.fx.Node, operand: torch.fx.Node, layout: torch.memory_format) -> None:
    """Let `node` take a copy of `operand`; of the integers, where it takes what they are dequantized to."""
    graph, is_dequantized = node.graph, operator_name(operand).startswith(DEQUANTIZE)
    is_dequantized &= node.target in _OF_ONE_LAYOUT
    source = operand.args[0] if is_dequantized else operand
    assert isinstance(source, torch.fx.Node)
    value = source.meta["val"].contiguous(memory_format=layout)
    with graph.inserting_before(node):
        copied = graph.call_function(
            exir_ops.edge.dim_order_ops._clone_dim_order.default,
            (source,),
            {"dim_order": list(value.dim_order())},
        )
        copied.meta = {**(source if is_dequantized else node).meta, "val": value}
        if is_dequantized:
            taken = graph.node_copy(operand, lambda each: copied if each is source else each)
            taken.meta = {**operand.meta, "val": operand.meta["val"].contiguous(memory_format=layout)}
        else:
            taken = copied
    node.replace_input_with(operand, taken)
