"""`scaled_dot_product_attention` as the products and the softmax that it is.

Few quantizers know it, and ExecuTorch decomposes it only behind them, so that all of an attention stayed in float.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch

from lowerdeck.graph.boolean_numbers import boolean_numbers, moved, only_number
from lowerdeck.graph.masked_scores import HANDING_ON, IS_MASKED, packet_of, reads_one_tensor
from lowerdeck.graph.masks import constants, stored_constant
from lowerdeck.graph.retracing import called
from lowerdeck.graph.scaled_masks import ALL_ALIKE, NO_FACTOR

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch.export import ExportedProgram
    from torch.fx import Node

    _Make = Callable[[], Node]
    _Known = Mapping[Node, Callable[[], Any]]

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


@dataclass(frozen=True, kw_only=True)
class _LeftOut:
    """What a mask of numbers says.

    Attributes:
        places: Makes the booleans that say where it leaves out.
        number: By what.
        bias: Makes what it adds elsewhere, if that is not 0.
        twice: Makes the booleans that say where it is minus infinity, as the sum of two finite numbers.
    """

    places: _Make
    number: float
    bias: _Make | None = None
    twice: _Make | None = None

    def through(self, node: Node, move: Callable[[Node, _Make], _Make]) -> _LeftOut:
        """The same of `node`, whose elements are those of the mask."""
        bias, twice = (each and move(node, each) for each in (self.bias, self.twice))
        return replace(self, places=move(node, self.places), bias=bias, twice=twice)


def attention_as_products(program: ExportedProgram) -> None:
    """Write attention in an ATen program as its parts; `rename_outputs` comes next.

    Where a mask of booleans leaves nothing, the result is 0, and where one of zeros with minus infinity filled in does.
    With a finite number in its place, all keys have equal weights there, or those of their scores if it is as small
    as -1e4. A bias beside it is added first. One with another mask of numbers that depends on inputs, or leaves
    nothing, stays: that of a softmax may be NaN there. So does a causal one of sequences whose length varies, because
    its mask is no constant.
    """
    known = constants(program, may_be_trained=True)
    for node in program.graph.find_nodes(op="call_function", target=_aten.scaled_dot_product_attention.default):
        names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
        _reshape_behind(node)
        options = _Attention(**dict(zip(names, node.args, strict=False)), **node.kwargs)
        mask = options.attn_mask
        value = None if mask is None or mask not in known else known[mask]()
        is_unknown = options.dropout_p or (options.is_causal and _varies(options))
        left_out: _LeftOut | None = None
        if mask is not None and mask not in known:
            not_kept = partial(called, node, _aten.logical_not.default, mask)
            is_kept = _is_boolean(mask)
            left_out = _LeftOut(places=not_kept, number=-math.inf) if is_kept else _left_out(program, mask, known)
        is_filled = mask is None or left_out is not None or _is_boolean(mask)
        if not is_unknown and (is_filled or _leaves_something(value) or _is_finite(program, mask, known)):
            _replace(program, node, options, value, left_out)


def _varies(options: _Attention) -> bool:
    return not all(isinstance(each.meta["val"].shape[-2], int) for each in (options.query, options.key))


def _is_boolean(mask: Node) -> bool:
    return bool(mask.meta["val"].dtype == torch.bool)


def _leaves_something(mask: torch.Tensor | None) -> bool:
    """Whether every query has a key, as far as is known."""
    return mask is not None and bool((mask > -math.inf).any(-1).all())


def _is_finite(program: ExportedProgram, mask: Any, known: _Known) -> bool:
    """Whether a mask of numbers leaves something everywhere, so that the scores may be added to it.

    An input times a number does: it may be other than 0 and 1, as the numbers of segments are.
    """
    packet = packet_of(mask)
    if packet is _aten.mul:
        found, number = boolean_numbers(program, mask.args[0], known), only_number(mask.args[1], known)
        if found and found.is_given and number is not None:
            return math.isfinite(number)
    if packet in HANDING_ON and reads_one_tensor(mask):
        return _is_finite(program, mask.args[0], known)
    return _is_small(program, mask, known, -ALL_ALIKE)


def _is_small(program: ExportedProgram, mask: Any, known: _Known, most: float) -> bool:
    """Whether a mask has numbers below `most` by its making, as in BERT's `(1 - mask) * -10000.0`, or a bias."""
    if not isinstance(mask, torch.fx.Node):
        return bool(abs(mask) < most)
    if mask in known:
        return bool((known[mask]().abs() < most).all())
    packet, found = packet_of(mask), boolean_numbers(program, mask, known)
    if found and not found.is_given:
        return True
    if packet is _aten.mul and boolean_numbers(program, mask.args[0], known):
        number = only_number(mask.args[1], known)
        return number is not None and abs(number) < most
    if packet is _aten.where and len(mask.args) == 3:
        return all(_is_small(program, each, known, most) for each in mask.args[1:])
    if packet is _aten.add and not mask.kwargs:
        return all(_is_small(program, each, known, most) for each in mask.args)
    return packet in HANDING_ON and _is_small(program, mask.args[0], known, most)


def _left_out(program: ExportedProgram, mask: Any, known: _Known) -> _LeftOut | None:
    """Where `mask`, of numbers, leaves out, and by what.

    None where it may say more than that, or by numbers to which adding scores makes a difference.
    """
    if not isinstance(mask, torch.fx.Node) or _is_boolean(mask):
        return None  # it is a number among others
    found = _left_out_by_constant(program, mask, known[mask]()) if mask in known else None
    packet = packet_of(mask)
    if found is None and packet in _LEAVING_OUT:
        return _LEAVING_OUT[packet](program, mask, known)
    if found or packet not in HANDING_ON or not reads_one_tensor(mask):
        return found
    found = _left_out(program, mask.args[0], known)
    return found and found.through(mask, moved)


def _expanded(mask: Node, source: _Make) -> _Make:
    return lambda: called(mask, _aten.expand_as.default, source(), mask)


def _left_out_by_constant(program: ExportedProgram, mask: Node, value: torch.Tensor) -> _LeftOut | None:
    if not value.is_floating_point() or not value.numel():
        return None
    number = float(value.amin()) if value.any() else -math.inf
    bias = value.masked_fill(value == number, 0)
    is_stored = mask.op == "placeholder" and mask.name not in program.graph_signature.inputs_to_parameters
    if number > ALL_ALIKE or not bool((bias.abs() <= (-IS_MASKED if is_stored else 0)).all()):
        return None
    places = partial(stored_constant, program, f"left_out_by_{mask.name}", value == number)
    added = partial(stored_constant, program, f"added_by_{mask.name}", bias) if bias.any() else None
    return _LeftOut(places=places, number=number, bias=added)


def _left_out_by_sum(program: ExportedProgram, mask: Node, known: _Known) -> _LeftOut | None:
    """`_left_out` of the sum of two masks, or of a mask and a bias."""
    if mask.target != _aten.add.Tensor or mask.kwargs or len(mask.all_input_nodes) != 2:
        return None
    one, other = (_left_out(program, each, known) for each in mask.args)
    if one and other:
        found = _either(mask, one, other)
        if found is None or found.number == -math.inf:
            return found
        # Twice a finite number is another one, or infinite.
        is_twice = 2 * found.number < torch.finfo(mask.meta["val"].dtype).min and not found.bias
        both = partial(_combined, mask, _aten.logical_and.default, one.places, other.places)
        return replace(found, twice=both) if is_twice else None
    for found, bias in ((one, mask.all_input_nodes[1]), (other, mask.all_input_nodes[0])):
        is_masked = found and found.number <= NO_FACTOR and not found.bias and not found.twice
        if found and is_masked and _is_small(program, bias, known, -IS_MASKED):
            return replace(found, bias=partial(_given, bias)).through(mask, _expanded)
    return None


def _given(node: Node) -> Node:
    return node


def _either(mask: Node, one: _LeftOut, other: _LeftOut) -> _LeftOut | None:
    """What both leave out, if they do so by the same number."""
    if one.number != other.number or one.twice or other.twice or (one.bias and other.bias):
        return None
    places = partial(_combined, mask, _aten.logical_or.default, one.places, other.places)
    bias = one.bias or other.bias
    return _LeftOut(places=places, number=one.number, bias=bias and _expanded(mask, bias))


def _combined(mask: Node, operator: Any, *makes: _Make) -> Node:
    return called(mask, operator, *(make() for make in makes))


def _left_out_by_filling(program: ExportedProgram, mask: Node, known: _Known) -> _LeftOut | None:
    """`_left_out` of a `masked_fill` of zeros, of another mask, of a bias, or of numbers where they are not 0."""
    filled, places, value = cast("list[Node]", mask.args)
    is_filled = packet_of(places) in (_aten.to, _aten._to_copy) and places.args[0] == filled
    return _filled(program, mask, (0 if is_filled else filled, lambda: places, value), known)


def _left_out_by_choice(program: ExportedProgram, mask: Node, known: _Known) -> _LeftOut | None:
    """`_left_out` of a `where` that chooses between a number and anything that `masked_fill` may fill."""
    if len(mask.args) != 3:
        return None
    condition, one, other = cast("tuple[Node, Any, Any]", mask.args)
    chosen = _filled(program, mask, (other, lambda: condition, one), known)
    others = partial(called, mask, _aten.logical_not.default, condition)
    return chosen or _filled(program, mask, (one, others, other), known)


def _filled(program: ExportedProgram, mask: Node, filling: tuple[Any, _Make, Any], known: _Known) -> _LeftOut | None:
    """`_left_out` of `mask`, in which a number is filled in, from what is filled, its places and the number."""
    filled, places, value = filling
    number = only_number(value, known)
    if number is None or number > ALL_ALIKE:
        return None
    found = _LeftOut(places=_expanded(mask, places), number=number)
    if packet_of(filled) is _aten.zeros_like or only_number(filled, known) == 0:
        return found
    if inner := _left_out(program, filled, known):
        return _either(mask, inner, found)
    is_bias = isinstance(filled, torch.fx.Node) and _is_small(program, filled, known, -IS_MASKED)
    return replace(found, bias=_expanded(mask, lambda: filled)) if is_bias else None


def _left_out_by_product(program: ExportedProgram, mask: Node, known: _Known) -> _LeftOut | None:
    """`_left_out` of booleans times a number; an input may have others than 0 and 1."""
    number, found = only_number(mask.args[1], known), boolean_numbers(program, mask.args[0], known)
    if number is None or found is None or found.is_given or not -math.inf < number * found.sign <= ALL_ALIKE:
        return None
    return _LeftOut(places=found.booleans, number=number * found.sign)


def _left_out_by_copy(program: ExportedProgram, mask: Node, known: _Known) -> _LeftOut | None:
    """`_left_out` of what is written over all of another tensor, as by `mask[..., :length] = padded`."""
    found = _left_out(program, mask.args[1], known)
    return found and found.through(mask, _expanded)


_LEAVING_OUT = {
    _aten.masked_fill: _left_out_by_filling,
    _aten.where: _left_out_by_choice,
    _aten.mul: _left_out_by_product,
    _aten.add: _left_out_by_sum,
    _aten.copy: _left_out_by_copy,
}


def _without(call: Callable[..., Node], scores: Node, left_out: _LeftOut) -> tuple[Node, Node | None]:
    """The scores that a mask leaves, and the rows of which it leaves nothing, where these become 0."""
    places, number = left_out.places(), left_out.number
    if left_out.bias:
        scores = call(_aten.add.Tensor, scores, call(_aten.to.dtype, left_out.bias(), scores.meta["val"].dtype))
    if left_out.twice:
        # Rows that keep nothing have equal weights wherever the mask is finite.
        twice, is_empty = left_out.twice(), call(_aten.all.dim, places, -1, True)
        scores = call(_aten.masked_fill.Scalar, scores, is_empty, 0.0)
        is_kept = call(_aten.logical_or.default, call(_aten.logical_not.default, places), is_empty)
        places = call(_aten.logical_or.default, twice, call(_aten.logical_not.default, is_kept))
        number = -math.inf
    nothing_left = call(_aten.all.dim, places, -1, True) if number == -math.inf else None
    return call(_aten.masked_fill.Scalar, scores, places, number), nothing_left


def _replace(
    program: ExportedProgram,
    node: Node,
    options: _Attention,
    known: torch.Tensor | None,
    left_out: _LeftOut | None,
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
            scores, nothing_left = _without(call, scores, left_out)
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
