"""Positions of axes, marks and lines in the plots of a comparison, for the SVG in the template."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lowerdeck.comparison import formatting
from lowerdeck.comparison.builds import ComparedBuild
from lowerdeck.comparison.columns import Column
from lowerdeck.comparison.pareto import Standing

MAX_INTERVALS = 60
"""Most builds with intervals; with more, only Pareto-optimal builds have theirs."""
MANY = 150
"""Most builds at full size; with more, marks are smaller and lines fainter."""
_WIDTH, _HEIGHT = 440, 330
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 16, 14, 48
_LARGE = ((1e9, "G"), (1e6, "M"), (1e3, "k"))
INELIGIBLE = "unfit"
"""CSS class of ineligible builds."""
_MARGIN = 0.06
"""Share of an axis that is empty at either end."""


@dataclass(frozen=True, kw_only=True)
class Look:
    """How builds are distinguished in all plots."""

    rows: Mapping[str, int]
    """Label -> row number in the page's table."""
    colors: Mapping[str, int]
    """Label -> colour number."""
    standings: Mapping[str, Standing]

    def style(self, build: ComparedBuild) -> str:
        """The CSS class of a build's marks and lines."""
        standing = self.standings.get(build.label)
        if standing is not None:
            return standing.name.lower()
        return "" if build.is_eligible else INELIGIBLE


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About `count` round numbers from `low` to `high`."""
    if not low < high:
        return [low]
    raw = (high - low) / count
    power: float = 10 ** math.floor(math.log10(raw))
    step = min((factor * power for factor in (1, 2, 2.5, 5, 10)), key=lambda step: abs(step - raw))
    first = math.ceil(low / step - 1e-9)
    return [number * step for number in range(first, math.floor(high / step + 1e-9) + 1)]


def scatter(builds: Sequence[ComparedBuild], x: Column, y: Column, look: Look) -> dict[str, Any]:
    """A plot of the builds with both metrics, and their Pareto frontier."""
    have = [build for build in builds if x.value(build) is not None and y.value(build) is not None]
    many = len(have) > MAX_INTERVALS
    bars = {build.label: y.interval(build) for build in have if not many or build.label in look.standings}
    ys = [_value(y, build) for build in have] + [end for ends in bars.values() if ends for end in ends]
    across = _Axis.of(x, [_value(x, build) for build in have], _LEFT, _WIDTH - _RIGHT)
    up = _Axis.of(y, ys, _HEIGHT - _BOTTOM, _TOP)
    return {
        "label": f"{formatting.title(y)} against {formatting.title(x)}",
        "width": _WIDTH,
        "height": _HEIGHT,
        "across": across,
        "up": up,
        "bars": [
            (across.at(_value(x, build)), up.at(ends[0]), up.at(ends[1]))
            for build in have
            if (ends := bars.get(build.label))
        ],
        "frontier": _frontier([build for build in have if build.is_eligible], x, y, across, up),
        "marks": _marks(have, x, y, across, up, look),
    }


@dataclass(frozen=True, kw_only=True)
class _Axis:
    """Values along a line from `start` to `end`, in units of the drawing."""

    column: Column
    low: float
    high: float
    start: float
    end: float

    @classmethod
    def of(cls, column: Column, values: Sequence[float], start: float, end: float) -> _Axis:
        low, high = min(values), max(values)
        margin = _MARGIN * (high - low) or abs(high) * _MARGIN or 1.0
        low, high = low - margin, high + margin
        if column.is_fraction:  # not much below 0 or above 100 %
            low, high = max(low, -_MARGIN / 4), min(high, 1 + _MARGIN / 4)
        return cls(column=column, low=low, high=high, start=start, end=end)

    def at(self, value: float) -> float:
        return self.start + (self.end - self.start) * (value - self.low) / (self.high - self.low)

    @property
    def ticks(self) -> list[tuple[float, str]]:
        return [(self.at(value), text) for value, text in labelled_ticks(self.column, self.low, self.high)]

    @property
    def title(self) -> str:
        unit = formatting.unit(self.column).replace("bytes", "KiB")
        better = {"max": " (more is better)", "min": " (less is better)", None: ""}[self.column.direction]
        return formatting.title(self.column, with_source=False) + (f", {unit}" if unit else "") + better


def labelled_ticks(column: Column, low: float, high: float) -> list[tuple[float, str]]:
    """Values and labels of an axis, round in the displayed unit and whole for counts."""
    scale = 0.01 if column.is_fraction else 1024.0 if formatting.unit(column) == "bytes" else 1.0
    found = ticks(low / scale, high / scale)
    if scale == 1 and formatting.is_count(column):
        found = sorted({float(round(value)) for value in found if low <= round(value) * scale <= high})
    step = min((after - before for before, after in itertools.pairwise(found)), default=abs(found[0]) if found else 1.0)
    size, suffix = next(
        ((size, suffix) for size, suffix in _LARGE if step >= size / 20 and high / scale >= size), (1, "")
    )
    digits = 0 if not step else max(0, math.ceil(-math.log10(step / size) - 1e-9))
    digits += step > 0 and abs(step / size * 10**digits - round(step / size * 10**digits)) > 1e-6
    return [(value * scale, f"{value / size:,.{digits}f}{suffix}" if value else "0") for value in found]


def _value(column: Column, build: ComparedBuild) -> float:
    value = column.value(build)
    assert value is not None
    return value


def _frontier(
    builds: Sequence[ComparedBuild], x: Column, y: Column, across: _Axis, up: _Axis
) -> list[tuple[float, float]]:
    """The corners of the Pareto frontier in these two metrics, from right to left."""
    if x.direction is None or y.direction is None:
        return []
    x_sign, y_sign = (1 if column.direction == "max" else -1 for column in (x, y))
    values = sorted({(x_sign * _value(x, build), y_sign * _value(y, build)) for build in builds}, reverse=True)
    best = -math.inf
    steps: list[tuple[float, float]] = []
    for x_score, y_score in values:
        if y_score > best:
            steps.append((across.at(x_sign * x_score), up.at(y_sign * y_score)))
            best = y_score
    return steps


def _marks(
    builds: Sequence[ComparedBuild], x: Column, y: Column, across: _Axis, up: _Axis, look: Look
) -> list[dict[str, Any]]:
    """Marks, Pareto-optimal ones on top; builds at one place share a mark per colour, as concentric rings."""
    places: dict[tuple[str, str], list[ComparedBuild]] = {}
    for build in builds:
        place = f"{across.at(_value(x, build)):.1f}", f"{up.at(_value(y, build)):.1f}"
        places.setdefault(place, []).append(build)
    size = 3.5 if len(builds) > MANY else 5.5
    marks: list[tuple[bool, dict[str, Any]]] = []
    for (left, top), here in places.items():
        groups: dict[tuple[int, str], list[ComparedBuild]] = {}
        for build in here:
            groups.setdefault((look.colors[build.label], look.style(build)), []).append(build)
        for ring, ((color, style), group) in enumerate(sorted(groups.items())):
            is_optimal = style not in ("", INELIGIBLE)
            mark = {
                "color": color,
                "style": style,
                "rows": [look.rows[build.label] for build in group],
                "x": left,
                "y": top,
                "tooltip": _tooltip(here, x, y),
                "radius": size + 2.5 * (len(groups) - 1 - ring) + (1.5 if is_optimal else 0),
            }
            marks.append((is_optimal, mark))
    return [mark for _, mark in sorted(marks, key=lambda mark: mark[0])]


def _tooltip(builds: Sequence[ComparedBuild], x: Column, y: Column) -> str:
    """The labels and values of the builds at a mark."""
    names = ", ".join(build.label for build in builds[:6])
    more = f" and {len(builds) - 6} more" if len(builds) > 6 else ""
    values = (
        f"{formatting.number(column, column.value(builds[0]))} {formatting.unit(column)}".strip() for column in (x, y)
    )
    return f"{names}{more}: {', '.join(values)}"
