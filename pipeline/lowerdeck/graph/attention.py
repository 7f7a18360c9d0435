"""`scaled_dot_product_attention` as the products and the softmax that it is.

Few quantizers know it, and ExecuTorch decomposes it only behind them, so that all of an attention stayed in float.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch

from lowerdeck.graph.boolean_numbers import boolean_numbers, moved, only_number
from lowerdeck.graph.masked_scores import HANDING_ON, packet_of
from lowerdeck.graph.masks import constants, stored_constant
from lowerdeck.graph.retracing import called
from lowerdeck.graph.scaled_masks import ALL_ALIKE

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
    With a finite number in its place, all keys have equal weights there, or those of their scores if it is as small
    as -1e4. One with another mask of numbers that depends on inputs, or leaves nothing, stays: that of a softmax may be
    NaN there. So does a causal one of sequences whose length varies, because its mask is no constant.
    """
    known = constants(program, may_be_trained=True)
    for node in program.graph.find_nodes(op="call_function", target=_aten.scaled_dot_product_attention.default):
        names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
        _reshape_behind(node)
        options = _Attention(**dict(zip(names, node.args, strict=False)), **node.kwargs)
        mask = options.attn_mask
        value = None if mask is None or mask not in known else known[mask]()
        is_unknown = options.dropout_p or (options.is_causal and _varies(options))
        left_out: tuple[_Make, float] | None = None
        if mask is not None and mask not in known:
            not_kept = partial(called, node, _aten.logical_not.default, mask)
            left_out = (not_kept, -math.inf) if _is_boolean(mask) else _left_out(program, mask, known)
        is_filled = mask is None or left_out is not None or _is_boolean(mask)
        if not is_unknown and (is_filled or _leaves_something(value) or _is_small(program, mask, known)):
            _replace(program, node, options, value, left_out)


def _varies(options: _Attention) -> bool:
    return not all(isinstance(each.meta["val"].shape[-2], int) for each in (options.query, options.key))


def _is_boolean(mask: Node) -> bool:
    return bool(mask.meta["val"].dtype == torch.bool)


def _leaves_something(mask: torch.Tensor | None) -> bool:
    """Whether every query has a key, as far as is known."""
    return mask is not None and bool((mask > -math.inf).any(-1).all())


def _is_small(program: ExportedProgram, mask: Any, known: Mapping[Node, Callable[[], Any]]) -> bool:
    """Whether a mask of booleans has a number to which the scores are added, as in BERT's `(1 - mask) * -10000.0`."""
    packet = packet_of(mask)
    if packet is _aten.where and len(mask.args) == 3:
        numbers = [only_number(each, known) for each in mask.args[1:]]
        return all(number is not None and abs(number) < -ALL_ALIKE for number in numbers)
    if packet is _aten.mul and boolean_numbers(program, mask.args[0], known):
        number = only_number(mask.args[1], known)
        return number is not None and abs(number) < -ALL_ALIKE
    if packet is _aten.add and not mask.kwargs:
        return all(_is_small(program, each, known) for each in mask.args)
    if isinstance(mask, torch.fx.Node) and mask in known:
        return bool((known[mask]().abs() < -ALL_ALIKE).all())
    return packet in HANDING_ON and _is_small(program, mask.args[0], known)


def _left_out(
    program: ExportedProgram, mask: Node, known: Mapping[Node, Callable[[], Any]]
) -> tuple[_Make, float] | None:
    """What makes the booleans that say where `mask`, of numbers, leaves out, and by what.

    None where it may say more than that, or by numbers to which adding scores makes a difference.
    """
    if mask in known:
        return _left_out_by_constant(program, mask, known[mask]())
    if _is_boolean(mask):
        return None  # it is a number among others
    packet = packet_of(mask)
    if packet is _aten.masked_fill:
        return _left_out_by_filling(program, mask, known)
    if packet is _aten.where and len(mask.args) == 3:
        return _left_out_by_choice(mask, known)
    if packet is _aten.mul:
        return _left_out_by_product(program, mask, known)
    if mask.target == _aten.add.Tensor and not mask.kwargs and len(mask.all_input_nodes) == 2:
        one, other = (_left_out(program, each, known) for each in mask.all_input_nodes)
        # Twice a finite number is another one, or infinite.
        return _either(mask, one, other) if one and one[1] == -math.inf else None
    if packet not in HANDING_ON or len(mask.all_input_nodes) != 1:
        return None
    found = _left_out(program, mask.all_input_nodes[0], known)
    return found and (moved(mask, found[0]), found[1])


def _left_out_by_constant(program: ExportedProgram, mask: Node, value: torch.Tensor) -> tuple[_Make, float] | None:
    if not value.is_floating_point() or not value.numel():
        return None
    number = float(value.amin()) if value.any() else -math.inf
    is_filled = number <= ALL_ALIKE and bool(((value == 0) | (value == number)).all())
    return (
        (partial(stored_constant, program, f"left_out_by_{mask.name}", value == number), number) if is_filled else None
    )


def _either(
    mask: Node, one: tuple[_Make, float] | None, other: tuple[_Make, float] | None
) -> tuple[_Make, float] | None:
    """What both leave out, if they do so by the same number."""
    if one is None or other is None or one[1] != other[1]:
        return None
    makes = (one[0], other[0])
    return lambda: called(mask, _aten.logical_or.default, *(make() for make in makes)), one[1]


def _left_out_by_filling(
    program: ExportedProgram, mask: Node, known: Mapping[Node, Callable[[], Any]]
) -> tuple[_Make, float] | None:
    """`_left_out` of a `masked_fill` of zeros, of another mask, or of numbers where they are not 0."""
    filled, places, value = cast("list[Node]", mask.args)
    number = only_number(value, known)
    if number is None or number > ALL_ALIKE:
        return None
    found = (partial(called, mask, _aten.expand_as.default, places, mask), number)
    is_empty = packet_of(filled) is _aten.zeros_like or (filled in known and not known[filled]().any())
    is_filled = packet_of(places) in (_aten.to, _aten._to_copy) and places.args[0] == filled
    return found if is_empty or is_filled else _either(mask, _left_out(program, filled, known), found)


def _left_out_by_product(
    program: ExportedProgram, mask: Node, known: Mapping[Node, Callable[[], Any]]
) -> tuple[_Make, float] | None:
    """`_left_out` of booleans times a number."""
    number, found = only_number(mask.args[1], known), boolean_numbers(program, mask.args[0], known)
    if number is None or found is None or not -math.inf < number * found.sign <= ALL_ALIKE:
        return None
    return found.booleans, number * found.sign


def _left_out_by_choice(mask: Node, known: Mapping[Node, Callable[[], Any]]) -> tuple[_Make, float] | None:
    """`_left_out` of a `where` that chooses between 0 and a number."""
    condition, *chosen = mask.args
    numbers = [only_number(each, known) for each in chosen]
    number = min((each for each in numbers if each is not None), default=0.0)
    if number > ALL_ALIKE or 0 not in numbers:
        return None
    is_kept = numbers[0] == 0

    def left_out() -> Node:
        places = called(mask, _aten.logical_not.default, condition) if is_kept else condition
        return called(mask, _aten.expand_as.default, places, mask)

    return left_out, number


def _replace(
    program: ExportedProgram,
    node: Node,
    options: _Attention,
    known: torch.Tensor | None,
    left_out: tuple[_Make, float] | None,
) -> None:
    """Replace `node`, whose mask is `known` if it depends on no input, or makes what it leaves out by a number."""
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
            places, number = left_out[0](), left_out[1]
            scores = call(_aten.masked_fill.Scalar, scores, places, number)
            nothing_left = call(_aten.all.dim, places, -1, True) if number == -math.inf else None
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
