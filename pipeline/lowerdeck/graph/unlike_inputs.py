"""Inputs with several quantities, such as pressures beside humidities, that a model normalizes itself.

One scale for the input has no steps for the smaller one: of humidities up to 1 beside pressures up to 1040, 8 bits keep
nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.utils._pytree import tree_leaves

from lowerdeck.graph.joined_outputs import MARK, marked_unlike
from lowerdeck.graph.masked_scores import HANDING_ON
from lowerdeck.graph.quantities import SEPARATING, Units, known_values, operator_of, step_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch.fx import GraphModule, Node

    from lowerdeck.graph.quantities import Step, Values

_aten = torch.ops.aten
_KEEPING = (
    *(_aten.clamp, _aten.clip, _aten.clamp_min, _aten.clamp_max, _aten.minimum, _aten.maximum, _aten.nan_to_num),
    *(_aten.mean, _aten.amax, _aten.amin, _aten.avg_pool1d, _aten.avg_pool2d, _aten.adaptive_avg_pool1d),
    *(_aten.adaptive_avg_pool2d, _aten.max_pool1d, _aten.max_pool2d, _aten.flip, _aten.roll),
)
"""Operators that limit, average or choose the elements of one tensor."""
IS_STATE = "is_state_of_the_model"
"""Marks inputs that a model gets back from itself; their factors are gains and no units."""


class _Normalized(NamedTuple):
    """What constants made of an input.

    Attributes:
        way: The nodes from the input on.
        is_part: Whether it may be one of several quantities of the input.
        units: Of the input: the widths of its quantities, and their centres.
    """

    way: tuple[Node, ...]
    is_part: bool
    units: Units


def mark_unlike_inputs(model: GraphModule) -> list[Node]:
    """Mark inputs of unlike quantities, with what normalizes them by constants, and return all that is marked.

    Unlike are quantities that are scaled or shifted so differently that one scale is too coarse for the least, also if
    each is read as a part of its own. What is made of them is in the order of 1, and quantized again.
    """
    values, found = known_values(model), dict[torch.fx.Node, _Normalized]()
    for node in model.graph.nodes:
        if node.op == "placeholder" and _is_float(node) and IS_STATE not in node.meta:
            found[node] = _Normalized((node,), False, Units())
            continue
        step = step_of(node, values)
        source = step.source if step else _handed_on(node, found, values)
        if source in found:
            found[node] = _behind(found[source], node, step)
    ends = [
        each for node, each in found.items() if any(user not in found and user.op != "output" for user in node.users)
    ]
    for each in ends:
        parts = [other for other in ends if other.way[0] is each.way[0] and other.is_part and each.is_part]
        if _hull([each, *parts]).are_unlike:
            for node in each.way:
                node.meta[MARK] = True
    return marked_unlike(model.graph)


def _is_float(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _handed_on(node: Node, found: Mapping[Node, _Normalized], values: Values) -> Node | None:
    """The one tensor that a node moves, limits, pools or fills, with numbers of the same units."""
    packet = operator_of(node)
    if packet in (*HANDING_ON, *SEPARATING):
        read = node.args[:1]
    elif packet is _aten.where:
        read = node.args[1:3]
    elif packet in _KEEPING:
        read = node.args
    else:
        return None
    computed = [each for each in tree_leaves(read) if isinstance(each, torch.fx.Node) and each not in values]
    return computed[0] if len(computed) == 1 and computed[0] in found else None


def _behind(before: _Normalized, node: Node, step: Step | None) -> _Normalized:
    way = (*before.way, node)
    if step is None:
        return _Normalized(way, before.is_part or operator_of(node) in SEPARATING, before.units)
    width, widest, low, high = before.units
    # y = factor * x + summand is of the order of 1 where x is in units of 1 / factor around -summand / factor.
    shifts = [shift * each for shift in step.shifts for each in (width, widest)]
    units = Units(width / step.units.largest, widest / step.units.least, low - max(shifts), high - min(shifts))
    return _Normalized(way, before.is_part, units)


def _hull(found: Sequence[_Normalized]) -> Units:
    least, largest, lowest, highest = zip(*(each.units for each in found), strict=True)
    return Units(min(least), max(largest), min(lowest), max(highest))
