"""Matrix products in the forms that backends quantize and have kernels for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch.fx import Graph, GraphModule, Node

_aten = torch.ops.aten
_OF_MATRICES = (_aten.matmul.default, _aten.mm.default)
_MATRICES = 3
"""Dimensions of a batch of matrices."""


def use_linear(module: GraphModule) -> None:
    """Write products `x @ w` with a constant matrix, and `b + x @ w`, as linear layers, which all backends have.

    The weight is a parameter of its own, because the matrix may be read elsewhere as well.
    """
    for node in [node for node in module.graph.nodes if node.target in (*_OF_MATRICES, _aten.addmm.default)]:
        *bias, left, right = node.args
        if right.op != "get_attr" or left.meta["val"].ndim < 2 or right.meta["val"].ndim != 2:
            continue
        if not right.meta["val"].is_floating_point():  # integers are no parameters
            continue
        columns = right.meta["val"].shape[1:]
        if node.kwargs or any(each.op != "get_attr" or each.meta["val"].shape != columns for each in bias):
            continue
        owner, _, name = right.target.rpartition(".")
        matrix = getattr(module.get_submodule(owner), name).detach()
        weight = torch.nn.Parameter(matrix.t().clone(memory_format=torch.contiguous_format))
        module.register_parameter(f"{node.name}_weight", weight)
        with module.graph.inserting_before(node):
            read = module.graph.get_attr(f"{node.name}_weight")
        read.meta = {"val": right.meta["val"].fake_mode.from_tensor(weight, static_shapes=True)}
        node.target, node.args = _aten.linear.default, (left, read, *bias)
    module.graph.eliminate_dead_code()
    module.recompile()


def use_bmm(graph: Graph) -> None:
    """Write products `a @ b` of equally many matrices as `torch.bmm`, which NXP and CMSIS-NN have; others stay.

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
