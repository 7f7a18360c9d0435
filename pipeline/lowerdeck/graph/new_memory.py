"""Memory that a model asks for without values, such as `torch.empty`, to write all of it in parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from lowerdeck.graph.retracing import arguments_of, called

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Node

_aten = torch.ops.aten
_ZEROS = {_aten.empty_like.default: _aten.zeros_like.default, _aten.new_empty.default: _aten.new_zeros.default}
_SIZED = (
    *(_aten.empty.memory_format, _aten.empty_strided.default, _aten.new_empty_strided.default),
    _aten.empty_permuted.default,
)


def fill_new_memory(program: ExportedProgram) -> None:
    """Let an ATen program and its parts begin with zeros where a model takes whatever the memory holds.

    Quantizers measure the range of such a tensor, too, before the model writes it; and ExecuTorch has no kernel for
    some of these operators.
    """
    for part in program.graph_module.modules():
        if isinstance(part, torch.fx.GraphModule):
            for node in list(part.graph.nodes):
                if node.target in _ZEROS:
                    node.target = _ZEROS[node.target]
                elif node.target in _SIZED:
                    _fill(node)
            part.recompile()


def _fill(node: Node) -> None:
    """Let `node` make zeros with the strides of what it makes, which views of it have been traced with."""
    arguments, value = arguments_of(node), node.meta["val"]
    size, order = arguments["size"], _order(value, arguments)
    options = {"dtype": value.dtype, "device": value.device}
    if order == [*range(value.ndim)]:
        node.target, node.args, node.kwargs = _aten.zeros.default, (size,), options
        return
    with node.graph.inserting_before(node):
        zeros = called(node, _aten.zeros.default, [size[dim] for dim in order], **options)
        moved = called(node, _aten.permute.default, zeros, [order.index(dim) for dim in range(value.ndim)])
    node.target, node.args, node.kwargs = _aten.clone.default, (moved,), {}  # a view would hide what is written


def _order(value: torch.Tensor, arguments: dict[str, Any]) -> list[int]:
    """The dimensions of a new tensor from that of the largest stride to that of the smallest, as far as is known."""
    dims, strides = range(value.ndim), value.stride()
    if not all(isinstance(each, int) for each in strides):
        return [*arguments.get("physical_layout", dims)]
    return sorted(dims, key=lambda dim: -strides[dim])
