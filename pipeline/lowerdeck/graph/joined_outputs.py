"""Joins of unlike quantities, such as boxes in pixels and probabilities, that no layer reads as one tensor.

One scale for both has no steps for the smaller one: of probabilities beside boxes up to 640, 8 bits keep nothing.
"""

from __future__ import annotations

import itertools
import operator
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_leaves

from lowerdeck.graph.masked_scores import CONVERTING, HANDING_ON, packet_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch.fx import Graph, Node

    _Kinds = frozenset[str]

_aten = torch.ops.aten
_CONCATENATING = (_aten.cat, _aten.concat, _aten.concatenate)
_JOINING = {
    **dict.fromkeys((*_CONCATENATING, _aten.stack, _aten.hstack, _aten.vstack, _aten.dstack, _aten.column_stack), 1),
    **dict.fromkeys((_aten.slice_scatter, _aten.select_scatter), 2),
}
"""Operators that put tensors beside each other, with the number of arguments that have these."""
_SEPARATING = (
    *(_aten.slice, _aten.select, _aten.narrow, _aten.split, _aten.split_with_sizes, _aten.chunk, _aten.tensor_split),
    *(_aten.unbind, _aten.index, _aten.index_select, _aten.gather, _aten.take_along_dim, operator.getitem),
)
"""Operators whose results may be one of the quantities that were put together."""
_ORDERING = (
    *(_aten.topk, _aten.sort, _aten.max, _aten.amax, _aten.min, _aten.amin, _aten.flip, _aten.roll),
    *(_aten.argmax, _aten.argmin, _aten.argsort),
)
_MOVING = (*HANDING_ON, *_SEPARATING, *_ORDERING)
"""Operators whose results are elements of their first argument, or places of these."""
_BOUNDED = (
    *(_aten.sigmoid, _aten.special_expit, _aten.hardsigmoid, _aten.softmax, _aten._softmax, _aten.tanh),
    *(_aten.sin, _aten.cos),
)
_LIMITS = dict.fromkeys((_aten.clamp, _aten.clip, _aten.hardtanh), (1, 2))
_OF_ALL = {_aten.mul: 2, _aten.sqrt: 1, _aten.mean: 1}
"""Operators whose results are at most 1 if the arguments, of which this is the number, are."""
_CHOOSING = {_aten.where: (1, 2), _aten.masked_fill: (0, 2), _aten.copy: (1,)}
_NUMBERS, _WHOLE, _BELOW_1 = "numbers", "whole numbers", "numbers up to 1"
_MOST_PARTS = 8
"""More tensors are steps of a sequence."""
_MARK = "lowerdeck.joins_unlike"


def mark_unlike_joins(graph: Graph) -> list[Node]:
    """Mark joins of unlike quantities, and what moves elements of them on, and return these nodes.

    Unlike are numbers up to 1 by how they are computed (a sigmoid, a softmax, booleans), integers, and others. A join
    counts only if what computes with it reads parts of it: a layer gives one scale to all that it reads.
    """
    kinds = dict[torch.fx.Node, "_Kinds"]()
    for node in graph.nodes:
        kinds[node] = _kinds(node, kinds)
    apart = _apart(graph)
    for node in graph.nodes:
        is_join = _operator(node) in _JOINING and len(kinds[node]) > 1 and node in apart
        if is_join or (_operator(node) in _MOVING and any(each.meta.get(_MARK) for each in node.all_input_nodes)):
            node.meta[_MARK] = True
    return marked_joins(graph)


def marked_joins(graph: Graph) -> list[Node]:
    """What `mark_unlike_joins` marked, or was made of it since."""
    return [node for node in graph.nodes if node.meta.get(_MARK)]


def joined_parts(graph: Graph) -> dict[Node, list[tuple[int, slice]]]:
    """Joins of a few tensors that no layer reads as one, with the dimension and the indices of each tensor in them."""
    apart, found = _apart(graph), dict[torch.fx.Node, list[tuple[int, slice]]]()
    for node in graph.nodes:
        tensors = node.args[0] if _operator(node) in (*_CONCATENATING, _aten.stack) else ()
        if node not in apart or not 1 < len(tensors) <= _MOST_PARTS:
            continue
        value = node.meta["val"]
        dim = (node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)) % value.dim()
        sizes = [each.meta["val"].shape[dim] if _operator(node) in _CONCATENATING else 1 for each in tensors]
        if all(isinstance(size, int) for size in sizes):
            ends = list(itertools.accumulate(sizes, initial=0))
            found[node] = [(dim, slice(*each)) for each in itertools.pairwise(ends)]
    return found


def _apart(graph: Graph) -> set[Node]:
    """Nodes of which no more than parts are computed with."""
    apart = set[torch.fx.Node]()
    for node in reversed(graph.nodes):
        if all(_reads_apart(user, apart) for user in node.users):
            apart.add(node)
    return apart


def _operator(node: Node) -> Any:
    return packet_of(node) or node.target


def _reads_apart(user: Node, apart: set[Node]) -> bool:
    if user.op == "output" or _operator(user) in _SEPARATING:
        return True
    return _operator(user) in (*_MOVING, *_JOINING) and user in apart


def _kinds(node: Node, known: Mapping[Node, _Kinds]) -> _Kinds:
    """The kinds of quantities that a node's elements are."""
    if node.op == "get_attr" or (node.op == "call_function" and not any(known[each] for each in node.all_input_nodes)):
        return frozenset()  # a constant has the quantization of its own
    packet, value = _operator(node), node.meta.get("val")
    if isinstance(value, torch.Tensor) and not value.is_floating_point():
        return frozenset({_BELOW_1 if value.dtype == torch.bool else _WHOLE})
    if packet in _BOUNDED or (packet in _LIMITS and all(_is_small(each, known) for each in _limits(node, packet))):
        return frozenset({_BELOW_1})
    if packet in _OF_ALL and all(_is_small(each, known) for each in node.args[: _OF_ALL[packet]]):
        return frozenset({_BELOW_1})
    read = _handed_on(node, packet)
    if not read:
        return frozenset({_NUMBERS})
    return frozenset().union(*(known[each] for each in read if isinstance(each, torch.fx.Node)))


def _handed_on(node: Node, packet: Any) -> list[Any]:
    """The arguments of which a node's results are elements."""
    if packet in _JOINING:
        return tree_leaves(node.args[: _JOINING[packet]])
    if packet in _CHOOSING:
        return [node.args[at] for at in _CHOOSING[packet]]
    return [node.args[0]] if packet in (*CONVERTING, *_MOVING, *_LIMITS) else []


def _limits(node: Node, packet: Any) -> list[Any]:
    """The least and the largest number of the results."""
    return [node.args[at] if at < len(node.args) else None for at in _LIMITS[packet]]


def _is_small(argument: Any, known: Mapping[Node, _Kinds]) -> bool:
    if isinstance(argument, torch.fx.Node):
        return known[argument] == {_BELOW_1}
    return isinstance(argument, (int, float)) and abs(argument) <= 1
