"""Masks that are added in front of a maximum: `(x + (1 - mask) * -1e9).amax(1)` fills the number in."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from lowerdeck.graph.boolean_numbers import boolean_numbers, moved, only_number
from lowerdeck.graph.masked_scores import HANDING_ON, MASKED, packet_of
from lowerdeck.graph.masks import constants
from lowerdeck.graph.retracing import called

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch.export import ExportedProgram
    from torch.fx import Node

    _Known = Mapping[Node, Callable[[], Any]]

_aten = torch.ops.aten
_EXTREMA = (_aten.amax, _aten.max, _aten.argmax, _aten.amin, _aten.min, _aten.argmin)


class _Mask(NamedTuple):
    """Numbers that are 0, or one number where booleans are true."""

    booleans: Callable[[], Node]
    number: float


def fill_added(program: ExportedProgram) -> None:
    """Let sums that only extrema read fill in the number of their mask; `fill_with_extrema` comes next."""
    values: _Known = {}
    for node in list(program.graph.nodes):
        packet = packet_of(node)
        is_sum = packet in (_aten.add, _aten.sub) and not node.kwargs and len(node.all_input_nodes) == 2
        if not is_sum or not node.users or not all(packet_of(user) in _EXTREMA for user in node.users):
            continue
        values = values or constants(program, may_be_trained=True)
        x, other = node.args
        sign = 1 if packet is _aten.add else -1
        for filled, mask in (
            (x, _mask(program, other, values)),
            (other, _mask(program, x, values) if sign > 0 else None),
        ):
            made, given = node.meta["val"], filled.meta["val"]
            if mask and (made.shape, made.dtype) == (given.shape, given.dtype):
                with program.graph.inserting_before(node):
                    arguments = filled, mask.booleans(), mask.number * sign
                    node.replace_all_uses_with(called(node, _aten.masked_fill.Scalar, *arguments))
                program.graph.erase_node(node)
                break


def _mask(program: ExportedProgram, node: Any, values: _Known) -> _Mask | None:
    """What a tensor is made of that is added to another one, if it is a mask."""
    packet = packet_of(node)
    if packet in HANDING_ON and len(node.all_input_nodes) == 1:
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
