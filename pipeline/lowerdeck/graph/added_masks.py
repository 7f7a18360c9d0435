"""Masks that are added in front of a maximum: `(x + (1 - mask) * -1e9).amax(1)` fills the number in."""

from __future__ import annotations

import operator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from lowerdeck.graph.boolean_numbers import boolean_numbers, moved, only_number
from lowerdeck.graph.masked_extrema import LARGEST, OF_TWO, SMALLEST
from lowerdeck.graph.masked_scores import HANDING_ON, MASKED, packet_of, reads_one_tensor
from lowerdeck.graph.masks import constants, stored_constant
from lowerdeck.graph.retracing import arguments_of, called
from lowerdeck.graph.scaled_masks import ALL_ALIKE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch.export import ExportedProgram
    from torch.fx import Node

    _Known = Mapping[Node, Callable[[], Any]]

_aten = torch.ops.aten
_EXTREMA = (*LARGEST, *SMALLEST)


class _Mask(NamedTuple):
    """Numbers that are 0, or one number where booleans are true."""

    booleans: Callable[[], Node]
    number: float


def fill_added(program: ExportedProgram) -> None:
    """Let extrema of sums that nothing else reads fill in the number of their mask; `fill_with_extrema` comes next.

    Where indices are read, a mask that leaves nothing of a row has no say in it, because float32 keeps the order of
    what all of the number is added to; and a number that prefers is one that leaves out the others. The largest of
    what a number prefers stays a sum: it has that number.
    """
    values: _Known = {}
    for node in list(program.graph.nodes):
        packet = packet_of(node)
        is_sum = packet in (_aten.add, _aten.sub) and not node.kwargs and len(node.all_input_nodes) == 2
        if not is_sum or not node.users or not all(_is_extremum(user) for user in node.users):
            continue
        values = values or constants(program, may_be_trained=True)
        x, other = node.args
        sign = 1 if packet is _aten.add else -1
        for filled, mask in (
            (x, _mask(program, other, values)),
            (other, _mask(program, x, values) if sign > 0 else None),
        ):
            # Integers are not quantized, and have the order of what is left out.
            if mask and node.meta["val"].is_floating_point() and node.meta["val"].dtype == filled.meta["val"].dtype:
                _fill(node, filled, mask._replace(number=mask.number * sign))
                break


def _is_extremum(node: Node) -> bool:
    return packet_of(node) in _EXTREMA and node.target not in OF_TWO


def _fill(added: Node, filled: Node, mask: _Mask) -> None:
    """Let readers of `added`, the sum of `filled` and a mask, read what is filled in where that is the same to them."""
    graph, number = added.graph, mask.number
    with graph.inserting_before(added):
        booleans = mask.booleans()
        chosen = called(added, _aten.masked_fill.Scalar, filled, booleans, number)
    for user in list(added.users):
        largest = packet_of(user) in LARGEST
        leaves_out = number <= MASKED if largest else number >= -MASKED
        if abs(number) < -ALL_ALIKE and (reader := _reader_of_indices(user)):
            with graph.inserting_before(reader):
                left_out = booleans if leaves_out else called(added, _aten.logical_not.default, booleans)
                left_out = _of_rows_with_others(reader, left_out, added.meta["val"].ndim)
                beyond = -abs(number) if largest else abs(number)
                ordered = called(added, _aten.masked_fill.Scalar, filled, left_out, beyond)
            reader.replace_input_with(added, ordered)
        if leaves_out and added in user.all_input_nodes:
            user.replace_input_with(added, chosen)
    for node in (chosen, added):
        if not node.users:
            graph.erase_node(node)


def _reader_of_indices(extremum: Node) -> Node | None:
    """What has where the extrema are: a call for itself where `extremum` has the numbers, too; None if nothing does."""
    if packet_of(extremum) in (_aten.argmax, _aten.argmin):
        return extremum
    results = [user for user in extremum.users if user.target is operator.getitem and user.users]
    second = [each for each in results if each.args[1] == 1]
    if not second or len(second) == len(results):
        return extremum if second else None
    with extremum.graph.inserting_before(extremum):
        copied = extremum.graph.node_copy(extremum)
    for each in second:
        each.replace_input_with(extremum, copied)
    return copied


def _of_rows_with_others(reader: Node, left_out: Node, ndim: int) -> Node:
    """`left_out` without the rows, of those that `reader` reduces, of which it leaves nothing."""
    while left_out.meta["val"].ndim < ndim:
        left_out = called(left_out, _aten.unsqueeze.default, left_out, 0)
    dim = arguments_of(reader).get("dim")
    kept = called(left_out, _aten.logical_not.default, left_out)
    some = called(left_out, _aten.any.dims, kept, None if dim is None else [dim], True)
    return called(left_out, _aten.logical_and.default, left_out, some)


def _mask(program: ExportedProgram, node: Any, values: _Known) -> _Mask | None:
    """What a tensor is made of that is added to another one, if it is a mask."""
    packet = packet_of(node)
    if node in values:
        return _stored_mask(program, node, values[node]())
    if packet in HANDING_ON and reads_one_tensor(node):
        found = _mask(program, node.args[0], values)
        return found and _Mask(moved(node, found.booleans), found.number)
    if packet is _aten.mul:
        booleans, number = boolean_numbers(program, node.args[0], values), only_number(node.args[1], values)
        if booleans is None or booleans.is_given or number is None or abs(number) < -MASKED:
            return None
        return _Mask(booleans.booleans, number * booleans.sign)
    if packet is _aten.where and len(node.args) == 3:
        condition, *chosen = node.args
        numbers = [only_number(each, values) for each in chosen]
        number = next((each for each in numbers if each), None)
        if 0 not in numbers or number is None or abs(number) < -MASKED:
            return None
        is_kept = numbers[0] == 0
        return _Mask(
            partial(called, node, _aten.logical_not.default, condition) if is_kept else lambda: condition, number
        )
    return None


def _stored_mask(program: ExportedProgram, node: Node, value: torch.Tensor) -> _Mask | None:
    """What a constant is made of that has no numbers but 0 and one that leaves out."""
    zero, *others = sorted(value.unique().tolist(), key=abs) or [None]  # type: ignore[no-untyped-call]
    if zero != 0 or len(others) != 1 or not value.is_floating_point() or not abs(number := others[0]) >= -MASKED:
        return None
    return _Mask(lambda: stored_constant(program, f"mask_{node.name}", value != 0), number)
