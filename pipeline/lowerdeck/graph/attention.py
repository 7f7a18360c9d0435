"""`scaled_dot_product_attention` as the products and the softmax that it is.

Few quantizers know it, and ExecuTorch decomposes it only behind them, so that all of an attention stayed in float.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from lowerdeck.graph.masked_scores import HANDING_ON, packet_of
from lowerdeck.graph.masks import constants, stored_constant
from lowerdeck.graph.retracing import called

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch.export import ExportedProgram
    from torch.fx import Node

    _Make = Callable[[], Node]

_aten = torch.ops.aten


@dataclass(frozen=True, kw_only=True)
class _Attention:
    """The arguments of torch.nn.functional.scaled_dot_product_attention."""

    query: Node
    key: Node
    value: Node
    attn_mask: Node | None = None
    dropout_p: float = 0.0
    is_causal: bool = False
    scale: float | None = None
    enable_gqa: bool = False


def attention_as_products(program: ExportedProgram) -> None:
    """Write attention in an ATen program as its parts; `rename_outputs` comes next.

    Where a mask of booleans leaves nothing, the result is 0, and where one of zeros with minus infinity filled in does.
    One with another mask of numbers that depends on inputs, or leaves nothing, stays: that of a softmax would be NaN
    there. So does a causal one of sequences whose length varies, because its mask is no constant.
    """
    known = constants(program, may_be_trained=True)
    for node in program.graph.find_nodes(op="call_function", target=_aten.scaled_dot_product_attention.default):
        names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
        _reshape_behind(node)
        options = _Attention(**dict(zip(names, node.args, strict=False)), **node.kwargs)
        mask = options.attn_mask
        value = None if mask is None or mask not in known else known[mask]()
        is_unknown = options.dropout_p or (options.is_causal and _varies(options))
        left_out: _Make | None = None
        if mask is not None and mask not in known:
            is_boolean = _is_boolean(mask)
            left_out = (
                partial(called, node, _aten.logical_not.default, mask)
                if is_boolean
                else _left_out(program, mask, known)
            )
        if not is_unknown and (mask is None or left_out or _is_boolean(mask) or _leaves_something(value)):
            _replace(program, node, options, value, left_out)


def _varies(options: _Attention) -> bool:
    return not all(isinstance(each.meta["val"].shape[-2], int) for each in (options.query, options.key))


def _is_boolean(mask: Node) -> bool:
    return bool(mask.meta["val"].dtype == torch.bool)


def _leaves_something(mask: torch.Tensor | None) -> bool:
    """Whether every query has a key, as far as is known."""
    return mask is not None and bool((mask > -math.inf).any(-1).all())


def _left_out(program: ExportedProgram, mask: Node, known: Mapping[Node, Callable[[], Any]]) -> _Make | None:
    """What makes the booleans that say where `mask`, of numbers, leaves out; None where it may say more than that."""
    if mask in known:
        value = known[mask]()
        is_filled = value.is_floating_point() and bool(((value == 0) | (value == -math.inf)).all())
        return partial(stored_constant, program, f"left_out_by_{mask.name}", value == -math.inf) if is_filled else None
    if _is_boolean(mask):
        return None  # it is a number among others
    if packet_of(mask) is _aten.masked_fill and _only_number(mask.args[2], known) == -math.inf:
        (filled, *_) = mask.all_input_nodes
        is_empty = packet_of(filled) is _aten.zeros_like or (filled in known and not known[filled]().any())
        return partial(called, mask, _aten.expand_as.default, mask.args[1], mask) if is_empty else None
    if packet_of(mask) is _aten.where and len(mask.args) == 3:
        return _left_out_by_choice(mask, known)
    if mask.target == _aten.add.Tensor and not mask.kwargs and len(mask.all_input_nodes) == 2:
        one, other = (_left_out(program, each, known) for each in mask.all_input_nodes)
        return one and other and (lambda: called(mask, _aten.logical_or.default, one(), other()))
    if packet_of(mask) not in HANDING_ON or len(mask.all_input_nodes) != 1:
        return None
    moved = _left_out(program, mask.all_input_nodes[0], known)
    if moved is None or packet_of(mask) in (_aten.to, _aten._to_copy):
        return moved
    target = _aten.reshape.default if mask.target == _aten.view.default else mask.target
    return lambda: called(mask, target, moved(), *mask.args[1:], **mask.kwargs)


def _left_out_by_choice(mask: Node, known: Mapping[Node, Callable[[], Any]]) -> _Make | None:
    """`_left_out` of a `where` that chooses between 0 and minus infinity."""
    condition, *chosen = mask.args
    numbers = [_only_number(each, known) for each in chosen]
    if numbers not in ([-math.inf, 0], [0, -math.inf]):
        return None
    is_kept = numbers[0] == 0

    def left_out() -> Node:
        places = called(mask, _aten.logical_not.default, condition) if is_kept else condition
        return called(mask, _aten.expand_as.default, places, mask)

    return left_out


def _only_number(value: Any, known: Mapping[Node, Callable[[], Any]]) -> float | None:
    """The number that all elements of an argument have; None where they are not known, or differ."""
    if not isinstance(value, torch.fx.Node):
        return float(value)
    elements = known[value]().flatten() if value in known else torch.empty(0)
    return float(elements[0]) if elements.numel() and bool((elements == elements[0]).all()) else None


def _replace(
    program: ExportedProgram, node: Node, options: _Attention, known: torch.Tensor | None, left_out: _Make | None
) -> None:
    """Replace `node`, whose mask is `known` if it depends on no input, or makes what it leaves out."""
    graph, query, mask = node.graph, options.query, options.attn_mask
    call = partial(called, node)

    def for_each_query(x: Node) -> Node:
        """Keys and values are those of several heads of queries."""
        heads = query.meta["val"].shape[-3] // x.meta["val"].shape[-3] if options.enable_gqa else 1
        return x if heads == 1 else call(_aten.repeat_interleave.self_int, x, heads, -3)

    width = query.meta["val"].shape[-1]
    with graph.inserting_before(node):
        scaled = call(_aten.mul.Tensor, query, width**-0.5 if options.scale is None else options.scale)
        scores = call(_aten.matmul.default, scaled, call(_aten.transpose.int, for_each_query(options.key), -2, -1))
        nothing_left: Node | None = None
        if options.is_causal:
            later = _later_positions(program, *scores.meta["val"].shape[-2:])
            scores = call(_aten.masked_fill.Scalar, scores, later, -math.inf)
        elif mask is not None and _is_boolean(mask) and known is not None:
            places = stored_constant(program, f"left_out_by_{mask.name}", known.logical_not())
            scores = call(_aten.masked_fill.Scalar, scores, places, -math.inf)
            if not known.any(-1).all():
                rows = ~known.any(-1, keepdim=True)
                nothing_left = stored_constant(program, f"nothing_left_by_{mask.name}", rows)
        elif left_out is not None:
            places = left_out()
            scores = call(_aten.masked_fill.Scalar, scores, places, -math.inf)
            nothing_left = call(_aten.all.dim, places, -1, True)
        elif mask is not None:
            scores = call(_aten.add.Tensor, scores, mask)
        weights = call(_aten.softmax.int, scores, -1)
        attended = call(_aten.matmul.default, weights, for_each_query(options.value))
        if nothing_left is not None:
            attended = call(_aten.masked_fill.Scalar, attended, nothing_left, 0.0)
    node.replace_all_uses_with(attended)
    graph.erase_node(node)


def _reshape_behind(attended: Node) -> None:
    """Let views of the result copy where they have to.

    PyTorch has kernels whose results differ in their memory format, and chooses among them by whether gradients are on.
    """
    waiting, seen = [attended], set[Any]()
    while waiting:
        node = waiting.pop()
        seen.add(node)
        if node.target == _aten.view.default:
            node.target = _aten.reshape.default
        waiting.extend(user for user in node.users if packet_of(user) in HANDING_ON and user not in seen)


def _later_positions(program: ExportedProgram, rows: int, columns: int) -> Node:
    """Which keys come after a query, as a constant of the program: kernels would compute it at every call."""
    later = torch.ones(rows, columns, dtype=torch.bool).triu(1)
    return stored_constant(program, f"later_positions_{rows}_{columns}", later)
