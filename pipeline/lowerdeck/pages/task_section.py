"""The task's part of the report: curves and histograms as drawings, images of the worst samples."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lowerdeck.artifacts.task_pictures import AXES, CurvesOfPrograms, HistogramsOfPrograms, TaskPictures

WIDTH, HEIGHT = 320, 220
"""Of the area of a drawing, in the units of its view box."""
TITLES = {"precision_recall": "Precision over recall", "roc": "ROC"}


@dataclass(frozen=True, kw_only=True)
class Series:
    """One line, or the bars of one group, in a drawing."""

    name: str
    style: int
    """Number of its colour in the style sheet."""
    points: str
    """Of an SVG polyline."""
    mark: tuple[float, float] | None = None


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """A drawing with axes."""

    title: str
    x_label: str
    y_label: str
    x_range: tuple[str, str]
    y_range: tuple[str, str]
    series: Sequence[Series]


def values(pictures: TaskPictures) -> Mapping[str, Any]:
    """What the template task.html.j2 needs."""
    drawings = [_curves(curves) for curves in pictures.curves]
    if pictures.histogram is not None:
        drawings += _histograms(pictures.histogram)
    worst = [f"data:image/png;base64,{base64.b64encode(content).decode()}" for content in pictures.worst]
    return {"drawings": drawings, "worst": worst, "width": WIDTH, "height": HEIGHT}


def _curves(curves: CurvesOfPrograms) -> Drawing:
    x_label, y_label = AXES[curves.name]
    series = [
        Series(
            name=program,
            style=style,
            points=_points([(x * WIDTH, (1 - value) * HEIGHT) for x, value in zip(curves.x, y, strict=True)]),
            mark=_place(curves.marks.get(program)),
        )
        for style, (program, y) in enumerate(curves.y.items())
    ]
    return Drawing(
        title=TITLES[curves.name],
        x_label=x_label,
        y_label=y_label,
        x_range=("0", "1"),
        y_range=("0", "1"),
        series=series,
    )


def _place(mark: Sequence[float] | None) -> tuple[float, float] | None:
    return None if mark is None else (round(mark[0] * WIDTH, 1), round((1 - mark[1]) * HEIGHT, 1))


def _histograms(histogram: HistogramsOfPrograms) -> list[Drawing]:
    """A drawing for each program, all of the same height."""
    most = max(max(counts) for groups in histogram.counts.values() for counts in groups.values()) or 1
    ends = (f"{histogram.edges[0]:.3g}", f"{histogram.edges[-1]:.3g}")
    return [
        Drawing(
            title=f"{histogram.label}, {program}",
            x_label=histogram.label,
            y_label="count",
            x_range=ends,
            y_range=("0", f"{most:,}"),
            series=[
                Series(name=group, style=style, points=_points(_steps(counts, most)))
                for style, (group, counts) in enumerate(groups.items())
            ],
        )
        for program, groups in histogram.counts.items()
    ]


def _steps(counts: Sequence[int], most: int) -> list[tuple[float, float]]:
    """The outline of bars."""
    step, places = WIDTH / len(counts), [(0.0, float(HEIGHT))]
    for number, count in enumerate(counts):
        y = HEIGHT * (1 - count / most)
        places += [(number * step, y), ((number + 1) * step, y)]
    return [*places, (float(WIDTH), float(HEIGHT))]


def _points(places: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
