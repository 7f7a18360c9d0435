"""What a task shows of an evaluation beside numbers: curves, histograms, and what it says of single samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from lowerdeck.contracts.detection import Boxes, Detections

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Array: TypeAlias = npt.NDArray[Any]

CurveName = Literal["precision_recall", "roc"]


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One program's curve, read at the same places for all programs."""

    name: CurveName
    x: npt.NDArray[np.float64]
    """float64 [points], 0 ... 1: recall, or the rate of false positives."""
    y: npt.NDArray[np.float64]
    """float64 [points]: precision, or the rate of true positives."""
    mark: tuple[float, float] | None = None
    """The point that a threshold chooses, if the task chooses one."""


@dataclass(frozen=True, kw_only=True)
class Histogram:
    """Values of one program, in groups."""

    label: str
    """What the values are, with their unit, e.g. `error in units of the output`."""
    groups: Mapping[str, npt.NDArray[np.float64]]
    """Name, e.g. `normal` and `anomalous` -> values."""


@dataclass(frozen=True, kw_only=True)
class Overlay:
    """What is drawn on an image: a class for every pixel, or boxes."""

    mask: Array | None = None
    """Integers [h x w]; 0 and negative values are not drawn."""
    boxes: Boxes | Detections | None = None


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """What a program says in the course of a stream, and what happens there."""

    times_s: npt.NDArray[np.float64]
    """float64 [calls], ascending."""
    scores: npt.NDArray[np.float64]
    """float64 [calls], 0 ... 1."""
    threshold: float
    """A call fires above this score."""
    events_s: npt.NDArray[np.float64]
    """float64 [events x 2]: start and end."""
    accepted: npt.NDArray[np.bool_]
    """bool [events]."""
    false_accepts_s: npt.NDArray[np.float64]
    """float64 [false accepts]."""
