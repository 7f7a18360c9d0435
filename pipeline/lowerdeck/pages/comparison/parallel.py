"""Parallel coordinates: each build is a line across its parameters and metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lowerdeck.comparison import formatting
from lowerdeck.comparison.builds import ComparedBuild
from lowerdeck.comparison.columns import Column
from lowerdeck.comparison.parameters import Parameter
from lowerdeck.pages.comparison.plots import MANY, Look, labelled_ticks

MAX_AXES = 12
MAX_LABELS = 14
"""Most labels of a parameter's axis; of more values, only every nth has a label."""
_STEP, _HEIGHT, _TOP, _BOTTOM, _LEFT, _RIGHT = 150, 380, 58, 24, 30, 150


@dataclass(frozen=True, kw_only=True)
class _Scale:
    """One axis with its labels, and where each build crosses it (None without a value)."""

    title: str
    subtitle: str
    crossings: Sequence[float | None]
    labels: Sequence[tuple[float, str]]


def parallel(
    builds: Sequence[ComparedBuild], parameters: Sequence[Parameter], columns: Sequence[Column], look: Look
) -> dict[str, Any]:
    """Axes for parameters, then for metrics, as many as fit; at least four axes are reserved for metrics."""
    scales = [_of_parameter(parameter) for parameter in parameters[: MAX_AXES - min(len(columns), 4)]]
    scales += [_of_column(column, builds) for column in columns[: MAX_AXES - len(scales)]]
    # Pareto-optimal builds are drawn last, on top of the others.
    order = sorted(range(len(builds)), key=lambda row: builds[row].label in look.standings)
    return {
        "is_crowded": len(builds) > MANY,
        "width": _LEFT + _STEP * (len(scales) - 1) + _RIGHT,
        "height": _HEIGHT,
        "top": _TOP,
        "bottom": _HEIGHT - _BOTTOM,
        "lines": [
            {
                "color": look.colors[builds[row].label],
                "style": look.style(builds[row]),
                "row": look.rows[builds[row].label],
                "path": _path([scale.crossings[row] for scale in scales]),
            }
            for row in order
        ],
        "axes": [
            {"x": _LEFT + number * _STEP, "title": scale.title, "subtitle": scale.subtitle, "labels": scale.labels}
            for number, scale in enumerate(scales)
        ],
    }


def _of_parameter(parameter: Parameter) -> _Scale:
    values = sorted(set(parameter.values), key=natural)
    position = {value: _at(number / max(1, len(values) - 1)) for number, value in enumerate(values)}
    every = -(-len(values) // MAX_LABELS)
    section, _, rest = parameter.key.rpartition(".")
    return _Scale(
        title=rest,
        subtitle=section,
        crossings=[position[value] for value in parameter.values],
        labels=[(position[value], value) for value in values[::every]],
    )


def _of_column(column: Column, builds: Sequence[ComparedBuild]) -> _Scale:
    values = [value for build in builds if (value := column.value(build)) is not None]
    low, high = min(values), max(values)

    def at(value: float) -> float:
        share = (value - low) / (high - low) if high > low else 0.5
        return _at(1 - share if column.direction == "min" else share)

    crossings = [None if (value := column.value(build)) is None else at(value) for build in builds]
    labels = [(at(value), text) for value, text in labelled_ticks(column, low, high)]
    unit = formatting.unit(column)
    axis_title = formatting.title(column, with_source=False)
    shown_unit = "KiB" if unit == "bytes" else unit
    subtitle = ", ".join(part for part in (shown_unit, column.source if "(" in axis_title else "") if part)
    return _Scale(title=axis_title, subtitle=subtitle, crossings=crossings, labels=labels)


def natural(value: str) -> tuple[bool, float, str]:
    """Key that sorts numbers by value, and other texts behind them."""
    try:
        return (False, float(value), value)
    except ValueError:
        return (True, 0.0, value)


def _at(share: float) -> float:
    """The vertical position of `share`, with 1, the better end of metrics, at the top."""
    return _TOP + (1 - share) * (_HEIGHT - _TOP - _BOTTOM)


def _path(crossings: Sequence[float | None]) -> str:
    """The path from axis to axis, with gaps where the build has no value."""
    path, joined = "", False
    for number, crossing in enumerate(crossings):
        if crossing is not None:
            path += f"{'L' if joined else 'M'}{_LEFT + number * _STEP} {crossing:.1f}"
        joined = crossing is not None
    return path
