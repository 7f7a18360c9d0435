"""A view of a plan as SVG: boxes coloured by partition, those on the CPU with a broken outline and their reason."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from lowerdeck.explain.layout import Layout, layered
from lowerdeck.explain.views import Box, View

_WIDTH, _HEIGHT, _GAP_X, _GAP_Y, _MARGIN = 184, 42, 20, 24, 16
"""Pixels of a box, between boxes, and around all."""
_TITLE, _SUBTITLE = 20, 31
"""Characters that fit into a box's first and second line."""
HUES = (210, 145, 275, 35, 185, 320, 95, 245)
"""Colours of partitions in turn, as hues in degrees; neighbours differ."""


def svg(view: View, index_of: Mapping[str, int], number_of: Mapping[str, int], *, hidden: bool) -> str:
    """The drawing.

    Args:
        view: What to draw.
        index_of: Name of a node -> its place in the data of the page.
        number_of: Tag of a partition -> its number.
        hidden: Whether another view is shown first.
    """
    layout = layered([box.key for box in view.boxes], view.edges)
    width = round(layout.width * (_WIDTH + _GAP_X) - _GAP_X + 2 * _MARGIN)
    height = layout.num_layers * (_HEIGHT + _GAP_Y) - _GAP_Y + 2 * _MARGIN
    boxes = {box.key: box for box in view.boxes}
    edges = "".join(_edge(edge, layout, boxes) for edge in view.edges)
    drawn = "".join(_box(box, layout, index_of, number_of) for box in view.boxes)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" data-view="{view.name}" data-width="{width}" data-height="{height}" '
        f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"{" hidden" if hidden else ""} '
        f'role="group" aria-label="Graph of {escape(view.title)}"><g class="edges">{edges}</g>{drawn}</svg>'
    )


def _left(place: float) -> float:
    return _MARGIN + place * (_WIDTH + _GAP_X)


def _top(layer: int) -> int:
    return _MARGIN + layer * (_HEIGHT + _GAP_Y)


def _edge(edge: tuple[str, str], layout: Layout, boxes: Mapping[str, Box]) -> str:
    """From the foot of one box to the head of the other, straight through the layers that it passes."""
    route = layout.routes[edge]
    middles = [_left(place) + _WIDTH / 2 for place, _ in route]
    path = f"M{_number(middles[0])} {_top(route[0][1]) + _HEIGHT}"
    for index in range(1, len(route)):
        begin, end, head = middles[index - 1], middles[index], _top(route[index][1])
        bend = _number(head - _GAP_Y / 2)
        path += f"C{_number(begin)} {bend} {_number(end)} {bend} {_number(end)} {head}"
        if index < len(route) - 1:
            path += f"V{head + _HEIGHT}"
    crossing = ' class="crossing"' if boxes[edge[0]].partition != boxes[edge[1]].partition else ""
    return f'<path{crossing} data-from="{escape(edge[0])}" data-to="{escape(edge[1])}" d="{path}"/>'


def _box(box: Box, layout: Layout, index_of: Mapping[str, int], number_of: Mapping[str, int]) -> str:
    place, layer = layout.places[box.key]
    indices = " ".join(str(index_of[node.name]) for node in box.nodes)
    kind, hue, where = "box cpu", "", "CPU"
    if box.partition is not None:
        number = number_of[box.partition]
        kind, hue, where = "box", f' style="--hue:{HUES[number % len(HUES)]}"', str(number)
    elif not any(node.compute for node in box.nodes):
        kind = "box cpu moves"
    codes = list(dict.fromkeys(node.reason.code.value for node in box.nodes if node.reason))
    subtitle = f"{', '.join(codes)}: {box.subtitle}" if codes else box.subtitle
    tooltip = f"{box.title}\n{box.subtitle}\n{'CPU: ' + ', '.join(codes) if codes else box.partition or 'CPU'}"
    return (
        f'<g class="{kind}"{hue} data-key="{escape(box.key)}" data-nodes="{indices}" tabindex="0" role="button" '
        f'transform="translate({_number(_left(place))} {_top(layer)})"><title>{escape(tooltip)}</title>'
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" rx="6"/>'
        f'<text x="9" y="17">{escape(_truncate(box.title, _TITLE))}</text>'
        f'<text class="place" x="{_WIDTH - 8}" y="17">{escape(where)}</text>'
        f'<text class="sub" x="9" y="33">{escape(_truncate(subtitle, _SUBTITLE))}</text></g>'
    )


def _truncate(text: str, most: int) -> str:
    """As many characters as there is room for: the end of a path, the start of other texts."""
    if len(text) <= most:
        return text
    return f"{text[: most - 1]}…" if " " in text else f"…{text[1 - most :]}"


def _number(value: float) -> str:
    return f"{value:.1f}".rstrip("0").rstrip(".")
