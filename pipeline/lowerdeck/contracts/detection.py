"""The interface of decoders: what a detection model returns -> boxes with scores and classes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Array: TypeAlias = npt.NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class Boxes:
    """The objects in one image: what detections are compared with."""

    boxes: npt.NDArray[np.float64]
    """float64 [m x 4], left, top, right and bottom in pixels of the model's input."""
    classes: npt.NDArray[np.int64]
    """int64 [m]."""
    crowd: npt.NDArray[np.bool_]
    """bool [m], whether a box is around several objects: detections in it count neither as right nor as wrong."""


@dataclass(frozen=True, kw_only=True)
class Detections:
    """What a model found in one image."""

    boxes: npt.NDArray[np.float64]
    """float64 [n x 4], left, top, right and bottom in pixels of the model's input."""
    scores: npt.NDArray[np.float32]
    """float32 [n]."""
    classes: npt.NDArray[np.int64]
    """int64 [n], below `num_classes`."""
    num_classes: int


class Decoder(Protocol):
    """A module `pipeline/lowerdeck/tasks/decoders/NAME.py`, or one of a plug-in, as `task.options.decoder` names it."""

    Options: type
    """Frozen keyword-only dataclass that validates the other keys of `task.options.decoder`."""

    def decode(self, options: Any, outputs: Mapping[str, Array], size: tuple[int, int]) -> Detections:
        """The objects in one image, without duplicates.

        Args:
            options: See `Options`.
            outputs: The outputs by name, in the model's order, each with its batch dimension of 1.
            size: Height and width of the model's input in pixels.

        Raises:
            LowerdeckError: the outputs have other shapes.
        """
        ...
