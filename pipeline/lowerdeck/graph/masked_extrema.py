"""The largest, or the smallest, of what a mask leaves: what is left out gets a number that 8 bits have room for.

Models fill in minus infinity in front of a maximum. A quantization that reaches so far has no steps left for the
values; Arm's passes put -256 in its place, which takes all steps of small values, and is larger than others.
"""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from lowerdeck.graph.masked_scores import MASKED, packet_of
from lowerdeck.graph.retracing import replace_by

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.export import ExportedProgram
    from torch.fx import Node

    _Extremum = Callable[..., torch.Tensor]

_aten = torch.ops.aten
_LARGEST = (_aten.amax, _aten.max, _aten.argmax)
_SMALLEST = (_aten.amin, _aten.min, _aten.argmin)
_OF_TWO = (_aten.max.other, _aten.min.other)
"""Of the same names, but no reduction."""
_INDICES = (_aten.argmax, _aten.argmin)
_GAP, _LEAST_GAP = 1 / 8, 1e-3
"""Beyond what is left, where indices are read: relative to its range, and for values that are all zero.

Of 256 steps, an eighth costs the values 28. Any more would cost more, a fixed number alone small values all of them.
"""


class _Filled(NamedTuple):
    """Positions among the arguments of an operator that fills in a number."""

    values: int
    mask: int
    number: int


_FILLED: dict[Any, _Filled] = {
    _aten.masked_fill.Scalar: _Filled(values=0, mask=1, number=2),
    _aten.where.ScalarOther: _Filled(mask=0, values=1, number=2),
    _aten.where.ScalarSelf: _Filled(mask=0, number=1, values=2),
}


def fill_with_extrema(program: ExportedProgram) -> None:
    """Leave out by the smallest of what is left, or 0, in front of a maximum; by the largest in front of a minimum.

    Where indices are read, by a number beyond: of equal values the first wins. Where a mask leaves nothing, the result
    is that number in place of an infinite one. `rename_outputs` comes next.
    """
    for node in list(program.graph.nodes):
        if node.target in _FILLED and (extrema := _replacing(node, node.args[_FILLED[node.target].number])):
            dtype = node.meta["val"].dtype
            replace_by(node, _filled_with(extrema, _FILLED[node.target], _reads_indices(node), dtype))


def _replacing(node: Node, number: Any) -> tuple[_Extremum, _Extremum] | None:
    """What finds the number that replaces `number`, and the opposite; None where anything but extrema reads the result.

    Integers stay: they are not quantized, and have no room beyond them for certain.
    """
    readers = {packet_of(user) for user in node.users}
    if not node.meta["val"].is_floating_point() or any(user.target in _OF_TWO for user in node.users):
        return None
    if number <= MASKED and readers and readers.issubset(_LARGEST):
        return torch.amin, torch.amax
    if number >= -MASKED and readers and readers.issubset(_SMALLEST):
        return torch.amax, torch.amin
    return None


def _reads_indices(node: Node) -> bool:
    """Whether anything reads where the extrema are: the second of two results, or the only one."""
    second = [each for user in node.users for each in user.users if each.target is operator.getitem and each.args[1]]
    return any(packet_of(user) in _INDICES for user in node.users) or any(each.users for each in second)


def _filled_with(
    extrema: tuple[_Extremum, _Extremum], places: _Filled, reads_indices: bool, dtype: torch.dtype
) -> Callable[..., torch.Tensor]:
    def filled(*arguments: Any) -> torch.Tensor:
        values, mask = arguments[places.values], arguments[places.mask]
        values = values if values.dtype == dtype else values.to(dtype)  # integers beside an infinite number
        is_mask_of_values = places.values == places.mask + 1
        # What is left out may be NaN or infinite; 0 is in every range of 8 bits.
        left = torch.where(mask, values, 0.0) if is_mask_of_values else values.masked_fill(mask, 0.0)
        other, farthest = (each(left, dim=list(range(left.ndim)), keepdim=True) for each in extrema)
        if reads_indices:
            other = other + (other - farthest) * _GAP + math.copysign(_LEAST_GAP, arguments[places.number])
        return torch.where(mask, values, other) if is_mask_of_values else torch.where(mask, other, values)

    return filled
