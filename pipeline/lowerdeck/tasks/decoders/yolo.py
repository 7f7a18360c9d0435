"""Raw heads of YOLO: one output for each feature map, [1, channels, rows, columns].

Formulas, with t the raw outputs, s the sigmoid, c the column or row of a cell and a the extent of an anchor in pixels:
`v3`: centre (s(t) + c) * stride, extent exp(t) * a (Redmon and Farhadi, "YOLOv3", 2018, section 2.1); `v5`, also of
scaled YOLOv4 and YOLOv7: centre (2 s(t) - 0.5 + c) * stride, extent (2 s(t))^2 * a; `x` (YOLOX): centre (t + c) *
stride, extent exp(t) * stride; `v8`, also of later ones: distances from the centre of the cell to the four sides, each
the mean of a distribution over `reg_max` bins (Li et al., "Generalized Focal Loss", 2020, section 3.2), no objectness.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from lowerdeck.contracts.detection import Detections
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.tasks import outputs as output_choice
from lowerdeck.tasks.decoders import selection


@dataclass(frozen=True, kw_only=True)
class Options(selection.SelectionOptions):
    """Keys of `task.options.decoder`."""

    formula: Literal["v3", "v5", "v8", "x"] = "v5"
    """How raw outputs become boxes."""
    anchors: list[list[list[float]]] = field(default_factory=list)
    """For every head, width and height of each of its anchors in pixels of the input; none for `v8` and `x`."""
    heads: list[str] = field(default_factory=list)
    """Names of the outputs, in the order of `anchors`; none for all outputs in the model's order."""
    reg_max: int = 16
    """Bins of the distances of `v8`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        has_anchors = self.formula in ("v3", "v5")
        if has_anchors != bool(self.anchors):
            raise ValueError(
                f"formula {self.formula} {'needs' if has_anchors else 'has no'} anchors; "
                f"{'give [[[w, h], ...], ...], one list for each head' if has_anchors else 'leave them out'}"
            )
        if any(not sizes or any(len(size) != 2 or min(size) <= 0 for size in sizes) for sizes in self.anchors):
            raise ValueError(f"anchors is {self.anchors}; each anchor has to be [width, height], both above 0")
        if self.reg_max < 1:
            raise ValueError(f"reg_max is {self.reg_max}; it must be at least 1")


def decode(options: Options, outputs: Mapping[str, Any], size: tuple[int, int]) -> Detections:
    """See contracts.detection.Decoder."""
    names = options.heads or list(outputs)
    if options.anchors and len(names) != len(options.anchors):
        raise LowerdeckError(
            f"there are {len(names)} heads ({', '.join(names)}), and task.options.decoder.anchors has "
            f"{len(options.anchors)} lists; give one for each head, or choose some outputs with "
            "task.options.decoder.heads"
        )
    found = [_decoded(options, outputs, name, number, size) for number, name in enumerate(names)]
    widths = {scores.shape[1] for _, scores in found}
    if len(widths) > 1:
        raise LowerdeckError(f"the heads {', '.join(names)} have {sorted(widths)} classes; they must have the same")
    boxes, scores = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return selection.selected(options, boxes, scores, size)


def _decoded(options: Options, outputs: Mapping[str, Any], name: str, number: int, size: tuple[int, int]) -> Any:
    """Boxes [n x 4] and scores [n x classes] of one head."""
    values = output_choice.chosen(outputs, name, "task.options.decoder.heads").astype(np.float64)
    num_anchors = len(options.anchors[number]) if options.anchors else 1
    num_numbers = 4 * options.reg_max if options.formula == "v8" else 5
    if values.ndim != 3 or len(values) % num_anchors or len(values) // num_anchors <= num_numbers:
        raise LowerdeckError(
            f"the head {name} has shape {[1, *values.shape]}; formula {options.formula} needs [1, {num_anchors} x "
            f"({num_numbers} + classes), rows, columns]: correct task.options.decoder.anchors or .formula, or choose "
            "the heads with .heads"
        )
    _, rows, columns = values.shape
    # [anchors, numbers, rows, columns] -> [rows, columns, anchors, numbers]
    cells = values.reshape(num_anchors, -1, rows, columns).transpose(2, 3, 0, 1)
    y, x = np.meshgrid(np.arange(rows), np.arange(columns), indexing="ij")
    corner = np.stack([x, y], axis=-1)[:, :, None].astype(np.float64)
    stride = np.array([size[1] / columns, size[0] / rows])
    if options.formula == "v8":
        boxes = _from_distances(cells[..., :num_numbers], corner + 0.5, stride, options.reg_max)
        scores = selection.sigmoid(cells[..., num_numbers:])
    else:
        anchors = np.asarray(options.anchors[number]) if options.anchors else stride[None]
        boxes = _from_offsets(options.formula, cells[..., :4], corner, stride, anchors)
        scores = selection.sigmoid(cells[..., 4:5]) * selection.sigmoid(cells[..., 5:])
    return boxes.reshape(-1, 4), scores.reshape(boxes[..., 0].size, -1)


def _from_offsets(formula: str, offsets: Any, corner: Any, stride: Any, anchors: Any) -> Any:
    """Boxes [rows x columns x anchors x 4] from a centre and an extent."""
    place, extent = offsets[..., :2], offsets[..., 2:]
    if formula == "v5":
        centre, extent = 2 * selection.sigmoid(place) - 0.5, np.square(2 * selection.sigmoid(extent))
    else:
        centre, extent = selection.sigmoid(place) if formula == "v3" else place, np.exp(np.minimum(extent, 50.0))
    return selection.corners(np.concatenate([(centre + corner) * stride, extent * anchors], axis=-1), "cxcywh")


def _from_distances(numbers: Any, centre: Any, stride: Any, bins: int) -> Any:
    """Boxes [rows x columns x 1 x 4] from the distances of the four sides, in cells."""
    shares = selection.activated(numbers.reshape(*numbers.shape[:-1], 4, bins), "softmax")
    distances = shares @ np.arange(bins, dtype=np.float64)
    return np.concatenate([(centre - distances[..., :2]) * stride, (centre + distances[..., 2:]) * stride], axis=-1)
