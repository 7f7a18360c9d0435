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
