"""Curves and histograms of the task, and images of the worst samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from lowerdeck.artifacts import paths
from lowerdeck.artifacts.files import as_written, read_json, replace_folder, write_bytes, write_json, write_table
from lowerdeck.contracts.pictures import Curve, Histogram

NUM_BINS = 40
CURVE_FILES = {"precision_recall": paths.PRECISION_RECALL, "roc": paths.ROC}
AXES = {"precision_recall": ("recall", "precision"), "roc": ("false positive rate", "true positive rate")}
"""Curve -> what is on its axes."""


@dataclass(frozen=True, kw_only=True)
class CurvesOfPrograms:
    """A curve of every program, at the same places."""

    name: str
    x: Sequence[float]
    y: Mapping[str, Sequence[float]]
    """Program -> values."""
    marks: Mapping[str, tuple[float, float]]
    """Program -> the point that its threshold chooses."""


@dataclass(frozen=True, kw_only=True)
class HistogramsOfPrograms:
    """Counts of values between the same edges for every program."""

    label: str
    edges: Sequence[float]
    counts: Mapping[str, Mapping[str, Sequence[int]]]
    """Program -> group -> counts, one fewer than edges."""


@dataclass(frozen=True, kw_only=True)
class TaskPictures:
    """What a build shows of its task."""

    curves: Sequence[CurvesOfPrograms] = ()
    histogram: HistogramsOfPrograms | None = None
    worst: Sequence[bytes] = ()
    """PNG files, the worst sample first."""


def write_pictures(pictures: Mapping[str, Sequence[Curve | Histogram]], worst: Sequence[bytes] = ()) -> None:
    """Write the pictures of all programs, and tables of them for DVC, empty where the task has none.

    Args:
        pictures: Program -> its curves and its histogram.
        worst: PNG files, the worst sample first.
    """
    curves, histogram = _curves(pictures), _histogram(pictures)
    stored = {"curves": [asdict(curve) for curve in curves], "histogram": histogram and asdict(histogram)}
    write_json(paths.PICTURES, stored)
    for name, path in CURVE_FILES.items():
        found = next((curve for curve in curves if curve.name == name), None)
        programs = list(found.y) if found else []
        header = [axis.replace(" ", "_") for axis in AXES[name][:1]] + programs
        write_table(path, header, list(zip(found.x, *found.y.values(), strict=True)) if found else [])
    write_table(paths.HISTOGRAM, *_histogram_table(histogram))
    with replace_folder(paths.WORST) as folder:
        for number, content in enumerate(worst):
            write_bytes(folder / f"{number}.png", content)


def read_pictures() -> TaskPictures:
    """What `write_pictures` wrote.

    Raises:
        LowerdeckError: the file is missing or damaged; names the stage that writes it.
    """
    stored = read_json(paths.PICTURES)
    with as_written(paths.PICTURES):
        histogram = stored["histogram"]
        return TaskPictures(
            curves=[CurvesOfPrograms(**{**curve, "y": _in_order(curve["y"])}) for curve in stored["curves"]],
            histogram=None
            if histogram is None
            else HistogramsOfPrograms(**{**histogram, "counts": _in_order(histogram["counts"])}),
            worst=[path.read_bytes() for path in sorted(paths.WORST.glob("*.png"))],
        )


def _in_order(of_programs: Mapping[str, Any]) -> dict[str, Any]:
    """As programs follow from each other: JSON files are sorted by name."""
    return {program: of_programs[program] for program in ("float", "quantized", "delegated") if program in of_programs}


def _curves(pictures: Mapping[str, Sequence[Curve | Histogram]]) -> list[CurvesOfPrograms]:
    found = []
    for name in CURVE_FILES:
        of_programs = {
            program: picture
            for program, several in pictures.items()
            for picture in several
            if isinstance(picture, Curve) and picture.name == name
        }
        if of_programs:
            x = next(iter(of_programs.values())).x.tolist()
            y = {program: curve.y.tolist() for program, curve in of_programs.items()}
            marks = {program: curve.mark for program, curve in of_programs.items() if curve.mark is not None}
            found.append(CurvesOfPrograms(name=name, x=x, y=y, marks=marks))
    return found


def _histogram(pictures: Mapping[str, Sequence[Curve | Histogram]]) -> HistogramsOfPrograms | None:
    import numpy as np

    found = {
        program: picture
        for program, several in pictures.items()
        for picture in several
        if isinstance(picture, Histogram)
    }
    values = [group for histogram in found.values() for group in histogram.groups.values()]
    finite = [one[np.isfinite(one)] for one in values]
    if not any(one.size for one in finite):
        return None
    joined = np.concatenate(finite)
    edges = np.histogram_bin_edges(joined, bins=NUM_BINS)
    counts = {
        program: {group: np.histogram(one, bins=edges)[0].tolist() for group, one in histogram.groups.items()}
        for program, histogram in found.items()
    }
    return HistogramsOfPrograms(label=next(iter(found.values())).label, edges=edges.tolist(), counts=counts)


def _histogram_table(histogram: HistogramsOfPrograms | None) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Header and rows of a table: a row for each group and each pair of edges."""
    if histogram is None:
        return ["value", "group"], []
    programs = list(histogram.counts)
    groups = list(histogram.counts[programs[0]])
    middles = [(low + high) / 2 for low, high in zip(histogram.edges, histogram.edges[1:], strict=False)]
    rows = [
        (middle, group, *(histogram.counts[program][group][row] for program in programs))
        for group in groups
        for row, middle in enumerate(middles)
    ]
    return ["value", "group", *programs], rows
