"""What is masked in front of a softmax: its number, and the tensors of a program that may have it."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import GraphModule, Node

_aten = torch.ops.aten
MASKED = -1e4
"""exp(-1e4) is zero in float32, and the number exists in float16. Masks of BERT have had it for this reason."""
IS_MASKED = MASKED / 2
"""Scores that are less belong to what is masked."""
SOFTMAX = (_aten.softmax.int, _aten._softmax.default)
CONVERTING = (_aten.to, _aten._to_copy, _aten.type_as)
"""Operators that change nothing but the data type."""
HANDING_ON = (
    *(_aten.view, _aten.reshape, _aten._unsafe_view, _aten.flatten, _aten.unflatten, _aten.expand, _aten.repeat),
    *(_aten.unsqueeze, _aten.squeeze, _aten.transpose, _aten.permute, _aten.slice, _aten.select, _aten.clone),
    *(_aten.contiguous, _aten.alias, _aten.detach, _aten.detach_, _aten.dropout, _aten.lift_fresh_copy),
    *(_aten.expand_as, _aten.view_as, _aten.broadcast_to, _aten.tile, _aten.narrow, *CONVERTING),
    *(_aten.mT, _aten.t, _aten.numpy_T, _aten.adjoint, _aten.swapaxes, _aten.swapdims, _aten.movedim, _aten.moveaxis),
)
"""Operators whose results are elements of their first argument."""
FULL = {_aten.full: 1, _aten.full_like: 1, _aten.new_full: 2, _aten.fill: 1}
"""Where operators have the number of which they make a tensor."""
CHOOSING = {
    _aten.masked_fill: (0, 2),
    _aten.where: (1, 2),
    _aten.scalar_tensor: (0,),
    **{packet: (position,) for packet, position in FULL.items()},
}
"""Where operators have what their results consist of."""
OPERANDS = {_aten.add: (0, 1), _aten.sub: (0,), **CHOOSING, _aten.mul: (1,)}
"""Where an operator has the values that it hands on, or the number that stands for what is masked.

A product hands nothing on: what is left of a mask behind it depends on the other factor.
"""
_EXPONENTIAL = (_aten.softmax, _aten._softmax, _aten.exp)
_OF_SCORES = (*HANDING_ON, *OPERANDS, _aten.amax)
"""Operators between a mask and a softmax, or what backends decompose one into."""
_OTHER_NAMES: dict[str, Any] = {
    "dim_order_ops::_to_dim_order_copy": _aten._to_copy,
    **{
        f"aten::{name}_copy": getattr(_aten, name)
        for name in ("view", "expand", "unsqueeze", "squeeze", "slice", "select", "permute", "transpose", "t", "split")
    },
}
"""Operators that Arm's quantizer inserts, by name: the first exists once ExecuTorch is imported."""


def behind_masks(program: GraphModule | ExportedProgram) -> set[Node]:
    """The nodes between bounded masks, which belong to them, and a softmax.

    Args:
        program: An ATen program, or the prepared model that was made from one.
    """
    stored = stored_tensors(program)
    scores: set[Node] = set()
    waiting = [each for node in program.graph.nodes if packet_of(node) in _EXPONENTIAL for each in node.all_input_nodes]
    while waiting:
        node = waiting.pop()
        is_known = node.op == "call_module" or packet_of(node) in _OF_SCORES
        if node not in scores and (is_known or node in stored):
            scores.add(node)
            waiting.extend(node.all_input_nodes)
    found: set[Node] = set()
    for node in [each for each in program.graph.nodes if each in scores]:
        is_mask = _leaves_out(stored[node]) if node in stored else MASKED in node.args
        if is_mask or not found.isdisjoint(node.all_input_nodes):
            found.add(node)
    return found


def _leaves_out(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point() and bool((value == MASKED).any())


def stored_tensors(program: GraphModule | ExportedProgram) -> dict[Node, Any]:
    """The nodes of an ATen program, or of a module of one, that stand for tensors of the model, with their values."""
    if isinstance(program, torch.fx.GraphModule):
        return {node: attrgetter(str(node.target))(program) for node in program.graph.find_nodes(op="get_attr")}
    values, nodes = program.state_dict | program.constants, program.graph.find_nodes(op="placeholder")
    targets = (spec.target for spec in program.graph_signature.input_specs)
    return {node: values[target] for node, target in zip(nodes, targets, strict=True) if target in values}


def reads_one_tensor(node: Node) -> bool:
    """Whether a call reads one node beside those of sizes, as views of a dynamic batch do."""
    return sum(isinstance(each.meta.get("val"), torch.Tensor) for each in node.all_input_nodes) == 1


def packet_of(node: Any) -> Any:
    """The operator that a node calls, without its overload, the usual one of several alike; None for anything else."""
    target = node.target if isinstance(node, torch.fx.Node) else None
    if not isinstance(target, torch._ops.OpOverload):
        return None
    return _OTHER_NAMES.get(target._schema.name, target.overloadpacket)
