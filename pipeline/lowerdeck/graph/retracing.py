"""Calls that replace others in an ATen program, with their values and places in the model."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch._guards import detect_fake_mode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.node import map_arg
from torch.utils import _pytree

if TYPE_CHECKING:
    from torch.fx import Node


def replace_by(node: Node, function: Callable[..., torch.Tensor]) -> None:
    """Replace `node` by the operators that `function` calls with its arguments; `rename_outputs` comes next.

    Args:
        node: A call with one result. The new nodes have its place in the model.
        function: Made of torch's functions; gets fake tensors.
    """
    leaves, structure = _pytree.tree_flatten((node.args, node.kwargs))
    operands = [leaf for leaf in leaves if isinstance(leaf, torch.fx.Node)]
    values = [operand.meta["val"] for operand in operands]
    mode = detect_fake_mode(values)
    assert mode is not None, "values of exported programs are fake"

    def call(*given: torch.Tensor) -> torch.Tensor:
        tensors = iter(given)
        filled = [next(tensors) if isinstance(leaf, torch.fx.Node) else leaf for leaf in leaves]
        args, kwargs = _pytree.tree_unflatten(filled, structure)
        return function(*args, **kwargs)

    with mode:
        traced = make_fx(call)(*values)
    inputs = iter(operands)
    copies: dict[Node, Any] = {}
    with node.graph.inserting_before(node):
        for each in traced.graph.nodes:
            if each.op == "placeholder":
                copies[each] = next(inputs)
            elif each.op == "output":
                node.replace_all_uses_with(copies[each.args[0]])
            else:
                copies[each] = node.graph.node_copy(each, copies.__getitem__)
                copies[each].meta = {**node.meta, "val": each.meta["val"]}
    node.graph.erase_node(node)


def replace_other_uses(node: Node, made: Node) -> None:
    """Let all that read `node` read `made`, except for `made`, which may be computed from it."""
    node.replace_all_uses_with(made, delete_user_cb=lambda user: user is not made)


def called(node: Node, target: Any, *args: Any, **kwargs: Any) -> Node:
    """A new call at the graph's point of insertion, with the place of `node` in the model and values of its own."""
    made: Node = node.graph.call_function(target, args, kwargs)
    values, options = map_arg((args, kwargs), lambda each: each.meta["val"])
    mode = detect_fake_mode(node.meta["val"])
    assert mode is not None, "values of exported programs are fake"
    with mode:
        made.meta = {**node.meta, "val": target(*values, **options)}
    return made


def arguments_of(node: Node) -> dict[str, Any]:
    """Those of a call of an ATen operator by name, in their order, with the defaults of what is not given."""
    assert isinstance(node.target, torch._ops.OpOverload)
    schema = node.target._schema.arguments
    given = dict(zip((each.name for each in schema), node.args, strict=False)) | node.kwargs
    return {each.name: given.get(each.name, each.default_value) for each in schema}
