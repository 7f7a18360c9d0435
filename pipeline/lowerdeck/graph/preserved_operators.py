"""Operators that partitioners preserve for a delegate and ExecuTorch has no CPU kernel for, as those that it has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from executorch.exir.passes.replace_aten_with_edge_pass import aten_to_edge
from torch.export import default_decompositions
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves, tree_map_only

from lowerdeck.contracts.plan import Reason
from lowerdeck.graph.nodes import operator_name

if TYPE_CHECKING:
    from torch.export import ExportedProgram

_WITHOUT_KERNEL = ("hardsigmoid", "hardswish", "max_pool2d", "pad", "prelu", "silu")
_KERNELS = [
    getattr(torch.ops.aten, f"{kind}_pad{n}d").default for kind in ("reflection", "replication") for n in (1, 2, 3)
]
"""Operators that PyTorch decomposes although ExecuTorch has kernels for them."""
_Value = TypeVar("_Value")


def can_decompose(node: torch.fx.Node) -> bool:
    """Whether `decompose` knows the operator that `node` calls, for which there is no CPU kernel."""
    name = operator_name(node).removeprefix("aten.").removesuffix(".default")
    # PyTorch writes circular padding into an empty tensor, which no edge program has.
    return name in _WITHOUT_KERNEL and not (name == "pad" and "circular" in node.args)


def decompose(program: ExportedProgram, node: torch.fx.Node) -> list[torch.fx.Node]:
    """Replace `node` of the edge program by operators that have CPU kernels; return their nodes."""
    graph, replacing = node.graph, list[torch.fx.Node]()

    def call(called: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> torch.fx.Node:
        made = graph.call_function(called, arguments, named)
        values = tree_map_only(torch.fx.Node, lambda each: each.meta["val"], arguments)
        made.meta = {**node.meta, "val": called(*values, **named)}
        replacing.append(made)
        return made

    with graph.inserting_before(node):
        made = decomposed(node.target, node.args, node.kwargs, torch.fx.Node, lambda each: each.meta["val"], call)
    node.replace_all_uses_with(made)
    # Where the model returns the node, or writes it to a buffer, the signature has its name.
    program.graph_signature.replace_all_uses(node.name, made.name)
    graph.erase_node(node)
    return replacing


def decomposed(
    operator: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    kind: type[_Value],
    tensor_of: Callable[[_Value], torch.Tensor],
    call: Callable[[Any, tuple[Any, ...], dict[str, Any]], _Value],
) -> _Value:
    """What an operator of the edge dialect returns, as PyTorch decomposes it.

    Args:
        operator: The operator.
        args: Its arguments, which are of `kind` where they are tensors.
        kwargs: Others, without tensors.
        kind: Stands for tensors.
        tensor_of: Returns an example of one.
        call: (operator of the edge dialect, or getitem; its arguments) -> its result.
    """
    tensors = [leaf for leaf in tree_leaves(args) if isinstance(leaf, kind)]

    def whole(*data: torch.Tensor) -> Any:
        given = iter(data)
        return operator._op(*tree_map_only(kind, lambda _: next(given), args), **kwargs)

    table: Any = default_decompositions()
    table = {decomposing: how for decomposing, how in table.items() if decomposing not in _KERNELS}
    parts = make_fx(whole, decomposition_table=table)(*map(tensor_of, tensors))
    given, values = iter(tensors), dict[torch.fx.Node, _Value]()
    for node in parts.graph.nodes:
        if node.op == "placeholder":
            values[node] = next(given)
        elif node.op == "output":
            return values[node.args[0]]
        else:
            arguments = tree_map_only(torch.fx.Node, values.__getitem__, node.args)
            called = node.target
            if isinstance(called, torch._ops.OpOverload):
                called = aten_to_edge(_with_kernel(called, arguments))
            values[node] = call(called, arguments, dict(node.kwargs))
    raise AssertionError(f"the decomposition of {operator} has no output")


def _with_kernel(operator: torch._ops.OpOverload, arguments: tuple[Any, ...]) -> torch._ops.OpOverload:
    """The overload with a kernel in ExecuTorch: copies for views, `add.Scalar` for `add.Tensor` with a number."""
    if operator.is_view:
        packet = getattr(torch.ops.aten, f"{operator.overloadpacket.__name__}_copy")
        return getattr(packet, operator._overloadname)  # type: ignore[no-any-return]
    if operator._overloadname == "Tensor" and len(arguments) > 1 and isinstance(arguments[1], int | float):
        return operator.overloadpacket.Scalar  # type: ignore[no-any-return]
    return operator


def decompose_faulty(program: ExportedProgram, faulty: Mapping[str, Reason]) -> dict[str, Reason]:
    """Decompose operators that stay on the CPU, which has no kernel for them, in an edge program itself.

    Args:
        program: The edge program; modified.
        faulty: Nodes that the delegate computes wrongly or does not compile, each with its reason.

    Returns:
        `faulty` with the nodes that such a node became, which have its reason.
    """
    reasons = dict(faulty)
    for node in list(program.graph.nodes):
        if node.name in faulty and can_decompose(node):
            reason = reasons.pop(node.name)
            reasons |= dict.fromkeys([made.name for made in decompose(program, node)], reason)
    if reasons.keys() != faulty.keys():
        program.graph_module.recompile()
    return reasons
