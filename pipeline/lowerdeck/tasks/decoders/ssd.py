"""SSD: offsets of anchors that are known beforehand, and a score of each class for every anchor.

Source of the encoding: W. Liu et al., "SSD: Single Shot MultiBox Detector", ECCV 2016, section 2.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from lowerdeck.contracts.detection import Detections
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.tasks.decoders import selection


@dataclass(frozen=True, kw_only=True)
class Options(selection.SelectionOptions):
    """Keys of `task.options.decoder`."""

    grids: list[list[int]]
    """Rows and columns of every feature map, in the order of the model's rows, e.g. [[8, 8], [4, 4]]."""
    anchors: list[list[list[float]]]
    """For every feature map, width and height of each of its anchors as fractions of the input, e.g.
    [[[0.1, 0.1], [0.2, 0.1]], [[0.4, 0.4]]]. All anchors of a cell follow each other; cells go row by row."""
    boxes: str | None = None
    """Name of the output with offsets [1, anchors, 4]; null for the first one."""
    scores: str | None = None
    """Name of the output with scores [1, anchors, classes]; null for the second one."""
    layout: Literal["xywh", "yxhw"] = "xywh"
    """Order of the four offsets."""
    variances: list[float] = field(default_factory=lambda: [0.1, 0.2])
    """Factors of the offsets of the centre, and of the logarithm of the extent."""
    activation: selection.Activation = "softmax"
    """What turns the stored scores into 0 ... 1."""
    background: Literal["none", "first", "last"] = "first"
    """Which score is that of no object; it is dropped, so that `first` makes score 1 that of class 0."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.grids) != len(self.anchors) or not self.grids:
            raise ValueError(
                f"there are {len(self.grids)} grids and anchors for {len(self.anchors)}; give every feature map both"
            )
        if any(len(grid) != 2 or min(grid) < 1 for grid in self.grids):
            raise ValueError(f"grids is {self.grids}; each has to be [rows, columns], at least [1, 1]")
        if any(not sizes or any(len(size) != 2 or min(size) <= 0 for size in sizes) for sizes in self.anchors):
            raise ValueError(f"anchors is {self.anchors}; each anchor has to be [width, height], both above 0")
        if len(self.variances) != 2 or min(self.variances) <= 0:
            raise ValueError(f"variances is {self.variances}; it must be two numbers above 0, e.g. [0.1, 0.2]")


def decode(options: Options, outputs: Mapping[str, Any], size: tuple[int, int]) -> Detections:
    """See contracts.detection.Decoder."""
    offsets = selection.rows(outputs, options.boxes, 0, "offsets of boxes", 4)
    scores = selection.rows(outputs, options.scores, 1, "scores")
    anchors = anchor_boxes(options)
    if not len(offsets) == len(scores) == len(anchors):
        raise LowerdeckError(
            f"the model returns offsets of {len(offsets)} boxes and scores of {len(scores)}, and "
            f"task.options.decoder.grids and .anchors make {len(anchors)} anchors; they have to be as many"
        )
    if options.layout == "yxhw":
        offsets = offsets[:, [1, 0, 3, 2]]
    centre = anchors[:, :2] + offsets[:, :2] * options.variances[0] * anchors[:, 2:]
    extent = anchors[:, 2:] * np.exp(np.minimum(offsets[:, 2:] * options.variances[1], 50.0))
    boxes = selection.corners(np.concatenate([centre, extent], axis=1), "cxcywh")
    scores = selection.activated(scores, options.activation)
    scores = {"none": scores, "first": scores[:, 1:], "last": scores[:, :-1]}[options.background]
    return selection.selected(options, boxes * np.array([size[1], size[0]] * 2), scores, size)


def anchor_boxes(options: Options) -> Any:
    """Centre and extent of all anchors as fractions of the input, float64 [anchors x 4]."""
    found = []
    for (rows, columns), sizes in zip(options.grids, options.anchors, strict=True):
        y, x = np.meshgrid((np.arange(rows) + 0.5) / rows, (np.arange(columns) + 0.5) / columns, indexing="ij")
        centres = np.repeat(np.stack([x, y], axis=-1).reshape(-1, 1, 2), len(sizes), axis=1)
        extents = np.broadcast_to(np.asarray(sizes, dtype=np.float64), centres.shape)
        found.append(np.concatenate([centres, extents], axis=-1).reshape(-1, 4))
    return np.concatenate(found)
