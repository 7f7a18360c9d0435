"""The largest, or the smallest, of what a mask leaves: what is left out gets a number that 8 bits have room for.

Models fill in minus infinity in front of a maximum. A quantization that reaches so far has no steps left for the
values; Arm's passes put -256 in its place, which takes all steps of small values, and is larger than others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from lowerdeck.graph.masked_scores import MASKED, packet_of
from lowerdeck.graph.retracing import replace_by

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.export import ExportedProgram
    from torch.fx import Node

_aten = torch.ops.aten
_LARGEST = (_aten.amax, _aten.max, _aten.argmax)
_SMALLEST = (_aten.amin, _aten.min, _aten.argmin)


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
    """Leave out by the smallest of the values themselves in front of a maximum, by the largest in front of a minimum.

    Where a mask leaves nothing, the result is that number in place of an infinite one. `rename_outputs` comes next.
    """
    for node in list(program.graph.nodes):
        if node.target in _FILLED and (extremum := _replacing(node, node.args[_FILLED[node.target].number])):
            replace_by(node, _filled_with(extremum, _FILLED[node.target]))


def _replacing(node: Node, number: Any) -> Callable[..., torch.Tensor] | None:
    """What finds the number that replaces `number`; None where anything but extrema reads the result."""
    readers = {packet_of(user) for user in node.users}
    if number <= MASKED and readers and readers.issubset(_LARGEST):
        return torch.amin
    if number >= -MASKED and readers and readers.issubset(_SMALLEST):
        return torch.amax
    return None


def _filled_with(extremum: Callable[..., torch.Tensor], places: _Filled) -> Callable[..., torch.Tensor]:
    def filled(*arguments: Any) -> torch.Tensor:
        values, mask = arguments[places.values], arguments[places.mask]
        other = extremum(values, dim=list(range(values.ndim)), keepdim=True)
        is_mask_of_values = places.values == places.mask + 1
        return torch.where(mask, values, other) if is_mask_of_values else torch.where(mask, other, values)

    return filled
