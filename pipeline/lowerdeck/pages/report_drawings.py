"""Positions in the drawings of a report: quality from program to program, memory, ranges, and the graph in small."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from lowerdeck.contracts.plan import DelegationPlan
from lowerdeck.explain.graph import PlanGraph
from lowerdeck.explain.views import views
from lowerdeck.pages.explanation.drawing import BOX_HEIGHT, BOX_WIDTH, draw, hue
from lowerdeck.report.overview import MemoryBar, QualityPoint, RangeRow
from lowerdeck.report.quantization import clipped_text

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 560, 220, 64, 24, 18, 40
_LEAST_SPAN = 0.002
"""Least height of the axis: a difference below a fifth of a percent is not to look like a cliff."""
MAX_BOXES = 400
"""Most boxes of the small graph."""


def quality_picture(points: Sequence[QualityPoint], *, is_share: bool) -> dict[str, Any] | None:
    """Points, intervals and the line between them; None for fewer than two programs."""

    def text(value: float, signed: str = "") -> str:
        return f"{100 * value:{signed}.2f}" if is_share else f"{value:{signed}.4g}"

    if len(points) < 2:
        return None
    ends = [end for point in points for end in (*(point.interval or ()), point.value)]
    low, high = min(ends), max(ends)
    span = max(high - low, _LEAST_SPAN * max(abs(high), 1e-9))
    shown_ends = (low, (low + high) / 2, high) if high > low else (high,)
    low, high = low - 0.1 * span, low + 1.1 * span

    def up(value: float) -> float:
        return float(_HEIGHT - _BOTTOM - (value - low) / (high - low) * (_HEIGHT - _BOTTOM - _TOP))

    step = (_WIDTH - _LEFT - _RIGHT) / max(1, len(points) - 1)
    shown = [
        {
            "x": round(_LEFT + number * step, 1),
            "y": round(up(point.value), 1),
            "ends": None if point.interval is None else [round(up(end), 1) for end in point.interval],
            "program": point.program,
            "text": text(point.value),
            "change": "" if number == 0 else text(point.value - points[number - 1].value, "+"),
        }
        for number, point in enumerate(points)
    ]
    ticks = [(round(up(value), 1), text(value)) for value in shown_ends]
    return {
        "is_share": is_share,
        "width": _WIDTH,
        "height": _HEIGHT,
        "left": _LEFT,
        "bottom": _HEIGHT - _BOTTOM,
        "points": shown,
        "ticks": ticks,
    }


def memory_picture(bars: Sequence[MemoryBar]) -> list[dict[str, Any]]:
    """Bars as shares of the board's memory, or of the longest bar where its size is unknown."""
    longest = max((bar.used_bytes for bar in bars), default=1)
    shown = []
    for bar in bars:
        whole = bar.size_bytes or longest
        parts = [(what, size, f"{100 * min(1.0, size / whole):.1f}") for what, size in bar.parts]
        fills = None if bar.size_bytes is None else f"{100 * bar.used_bytes / bar.size_bytes:.0f} %"
        shown.append({"name": bar.name, "parts": parts, "used": bar.used_bytes, "size": bar.size_bytes, "fills": fills,
                      "unknown": bar.unknown})  # fmt: skip
    return shown


def range_picture(rows: Sequence[RangeRow]) -> list[dict[str, Any]]:
    """The histogram of each tensor over its representable range; the height of a bar is the root of its share.

    A few values far out decide about the range, and are to be seen beside a peak of thousands.
    """
    shown = []
    for row in rows:
        seen, possible = (f"{low:.4g} ... {high:.4g}" for low, high in (row.observed, row.representable))
        most = max(row.histogram, default=0) or 1
        heights = [math.sqrt(count / most) for count in row.histogram]
        clipped = f"{clipped_text(row.clipped_share)} clipped" if row.clipped_share else ""
        used = sum(count > 0 for count in row.histogram)
        label = f"observed {seen} of {possible}, in {used} of {len(row.histogram)} parts of the range"
        bars = [(number, f"{1 - height:.3f}", f"{height:.3f}") for number, height in enumerate(heights) if height]
        shown.append({"name": row.name, "bars": bars, "parts": len(row.histogram), "label": label,
                      "text": f"{seen} of {possible}", "clipped": clipped})  # fmt: skip
    return shown


def graph_picture(plan: DelegationPlan) -> dict[str, Any] | None:
    """The coarsest view of the plan, coloured by processor; None for very large programs."""
    graph = PlanGraph(plan)
    number_of = {tag: number for number, tag in enumerate(plan.places, start=1)}
    index_of: Mapping[str, int] = {node.name: index for index, node in enumerate(plan.nodes)}
    view = views(graph)[0]
    if len(view.boxes) > MAX_BOXES:
        return None
    drawn = draw(view, index_of, number_of, {})
    places = {box["place"] for box in drawn["boxes"]}
    legend: list[tuple[str, int | None]] = [("CPU", None)] if "CPU" in places else []
    legend += [(f"{number}: {tag}", hue(number)) for tag, number in number_of.items()]
    return {"drawing": drawn, "legend": legend, "box_width": BOX_WIDTH, "box_height": BOX_HEIGHT}
