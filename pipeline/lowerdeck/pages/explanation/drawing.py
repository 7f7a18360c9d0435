"""Positions and texts of the boxes and edges in a drawing of a plan, for the SVG in the template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from lowerdeck.explain.costs import NodeCost
from lowerdeck.explain.layout import Layout, layered
from lowerdeck.explain.views import Box, View

BOX_WIDTH, BOX_HEIGHT, _GAP_X, _GAP_Y, _MARGIN = 184, 42, 20, 24, 16
"""Pixels of a box, between boxes, and around the drawing."""
_BOW = (BOX_WIDTH + _GAP_X) / 2 / 0.75
"""How far the control points of a curve lie beside its ends for it to reach the middle of the gap."""
_TITLE, _SUBTITLE = 20, 31
"""Characters that fit into a box's first and second line."""
_HUES = (210, 145, 275, 35, 185, 320, 95, 245)
"""Colours of partitions in turn, as hues in degrees; neighbours differ."""


def hue(number: int) -> int:
    """The colour of partition `number`, as a hue in degrees."""
    return _HUES[number % len(_HUES)]


def draw(
    view: View,
    index_of: Mapping[str, int],
    number_of: Mapping[str, int],
    costs: Mapping[str, NodeCost] = MappingProxyType({}),
) -> dict[str, Any]:
    """The drawing, in pixels.

    Args:
        view: The view to draw.
        index_of: Name of a node -> its index in the data of the page.
        number_of: Place of a box other than portable kernels -> its number.
        costs: What nodes cost on a device, by their names; empty where that is unknown.
    """
    largest = max((cost.cost for cost in costs.values()), default=0.0) or 1.0
    layout = layered([box.key for box in view.boxes], view.edges)
    boxes = {box.key: box for box in view.boxes}
    return {
        "name": view.name,
        "title": view.title,
        "width": round(layout.width * (BOX_WIDTH + _GAP_X) - _GAP_X + 2 * _MARGIN),
        "height": layout.num_layers * (BOX_HEIGHT + _GAP_Y) - _GAP_Y + 2 * _MARGIN,
        "edges": [
            {
                "producer": producer,
                "consumer": consumer,
                "crosses": boxes[producer].place != boxes[consumer].place,
                "path": _path(layout.routes[producer, consumer]),
            }
            for producer, consumer in view.edges
        ],
        "boxes": [
            _box(box, layout, index_of, number_of) | {"heat": round(_heat(box, costs) / largest, 3)}
            for box in view.boxes
        ],
    }


def _heat(box: Box, costs: Mapping[str, NodeCost]) -> float:
    """The cost of the costliest instruction that computes any of its nodes."""
    return max((costs[node.name].cost for node in box.nodes if node.name in costs), default=0.0)


def _left(place: float) -> float:
    return _MARGIN + place * (BOX_WIDTH + _GAP_X)


def _top(layer: int) -> int:
    return _MARGIN + layer * (BOX_HEIGHT + _GAP_Y)


def _path(route: Sequence[tuple[float, int]]) -> str:
    """From the bottom of one box to the top of the other, straight through the layers in between.

    An edge without places in between bends into the gap beside its boxes, where boxes of one column do not hide it.
    """
    middles = [_left(place) + BOX_WIDTH / 2 for place, _ in route]
    path = f"M{_number(middles[0])} {_top(route[0][1]) + BOX_HEIGHT}"
    if route[1][1] - route[0][1] > 1:
        first, second = (_number(middle + _BOW) for middle in middles)
        top, head = _top(route[0][1]) + BOX_HEIGHT, _top(route[1][1])
        return f"{path}C{first} {top} {second} {head} {_number(middles[1])} {head}"
    for index in range(1, len(route)):
        start, end, head = middles[index - 1], middles[index], _top(route[index][1])
        bend = _number(head - _GAP_Y / 2)
        path += f"C{_number(start)} {bend} {_number(end)} {bend} {_number(end)} {head}"
        if index < len(route) - 1:
            path += f"V{head + BOX_HEIGHT}"
    return path


def _box(box: Box, layout: Layout, index_of: Mapping[str, int], number_of: Mapping[str, int]) -> dict[str, Any]:
    """A box, coloured by partition, or with a dashed outline and its reasons on the CPU."""
    place, layer = layout.places[box.key]
    number = number_of.get(box.place)
    on_cpu = "box cpu" if any(node.compute for node in box.nodes) else "box cpu moves"
    codes = list(dict.fromkeys(node.reason.code.value for node in box.nodes if node.reason))
    subtitle = f"{', '.join(codes)}: {box.subtitle}" if codes else box.subtitle
    return {
        "key": box.key,
        "kind": on_cpu if number is None else "box",
        "hue": None if number is None else hue(number),
        "indices": [index_of[node.name] for node in box.nodes],
        "left": _number(_left(place)),
        "top": _top(layer),
        "tooltip": f"{box.title}\n{box.subtitle}\n{'CPU: ' + ', '.join(codes) if codes else box.place}",
        "title": _truncate(box.title, _TITLE),
        "place": "CPU" if number is None else number,
        "subtitle": _truncate(subtitle, _SUBTITLE),
    }


def _truncate(text: str, most: int) -> str:
    """At most `most` characters: the end of a path, the start of other texts."""
    if len(text) <= most:
        return text
    return f"{text[: most - 1]}…" if " " in text else f"…{text[1 - most :]}"


def _number(value: float) -> str:
    return f"{value:.1f}".rstrip("0").rstrip(".")
