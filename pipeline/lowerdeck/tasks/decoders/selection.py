"""From candidates to detections, which decoders share: threshold, clipping, non-maximum suppression."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from lowerdeck.contracts.detection import Detections
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.tasks import outputs as output_choice

Floats = npt.NDArray[np.floating[Any]]
Activation = Literal["none", "sigmoid", "softmax"]


@dataclass(frozen=True, kw_only=True)
class SelectionOptions:
    """How a decoder chooses among candidates."""

    score_threshold: float = 0.01
    """Candidates with lower scores are dropped. Low, because the mean average precision looks at all of them."""
    iou_threshold: float | None = 0.5
    """Of two boxes of a class that overlap by more, the one with the lower score is dropped; null keeps both."""
    max_candidates: int = 1000
    """Most candidates, those with the highest scores, that are compared with each other."""

    def __post_init__(self) -> None:
        if not 0 <= self.score_threshold < 1:
            raise ValueError(f"score_threshold is {self.score_threshold}; it must be from 0 to below 1")
        if self.iou_threshold is not None and not 0 < self.iou_threshold <= 1:
            raise ValueError(f"iou_threshold is {self.iou_threshold}; it must be above 0 and at most 1, or null")
        if self.max_candidates < 1:
            raise ValueError(f"max_candidates is {self.max_candidates}; it must be at least 1")


def selected(options: SelectionOptions, boxes: Floats, scores: Floats, size: tuple[int, int]) -> Detections:
    """The detections among candidates, highest score first; every class of a candidate counts by itself.

    Args:
        options: See SelectionOptions.
        boxes: [n x 4], left, top, right, bottom in pixels.
        scores: [n x classes].
        size: Height and width of the image, to which boxes are clipped.
    """
    import torch
    from torchvision.ops import batched_nms

    limits = np.array([size[1], size[0], size[1], size[0]], dtype=np.float64)
    rows, classes = np.nonzero(scores >= options.score_threshold)
    chosen = scores[rows, classes].astype(np.float32)
    best = np.argsort(-chosen, kind="stable")[: options.max_candidates]
    clipped = np.clip(boxes[rows[best]].astype(np.float64), 0.0, limits)
    chosen, classes = chosen[best], classes[best].astype(np.int64)
    if options.iou_threshold is not None:
        rounded = clipped.astype(np.float32)  # as firmware has them, where that decides about overlaps by the threshold
        tensors = (
            torch.from_numpy(np.ascontiguousarray(values))
            for values in (rounded.astype(float), chosen.astype(float), classes)
        )
        kept = batched_nms(*tensors, options.iou_threshold).numpy()
        clipped, chosen, classes = clipped[kept], chosen[kept], classes[kept]
    return Detections(boxes=clipped, scores=chosen, classes=classes, num_classes=scores.shape[1])


def activated(values: Floats, activation: Activation) -> Floats:
    """Scores from raw outputs; softmax is over the last dimension."""
    if activation == "none":
        return values
    if activation == "sigmoid":
        return sigmoid(values)
    exponents = np.exp(values - values.max(axis=-1, keepdims=True))
    shares: Floats = exponents / exponents.sum(axis=-1, keepdims=True)
    return shares


def sigmoid(values: Floats) -> Floats:
    """1 / (1 + exp(-values)), without overflow."""
    result: Floats = 0.5 * (1.0 + np.tanh(0.5 * values))
    return result


def corners(boxes: Floats, layout: str) -> Floats:
    """[... x 4] boxes as left, top, right, bottom.

    Args:
        boxes: In the layout `xyxy`, `yxyx`, `xywh` (left, top, width, height) or `cxcywh` (centre, width, height).
        layout: One of these.
    """
    if layout == "xyxy":
        return boxes
    if layout == "yxyx":
        return boxes[..., [1, 0, 3, 2]]
    start, extent = boxes[..., :2], boxes[..., 2:]
    if layout == "cxcywh":
        start = start - extent / 2
    return np.concatenate([start, start + extent], axis=-1)


def rows(outputs: Mapping[str, Any], name: str | None, position: int, what: str, width: int | None = None) -> Floats:
    """The output `name`, or the one at `position`, as float64 [n x width], without its batch dimension.

    Raises:
        LowerdeckError: there is no such output, or it has another shape.
    """
    names = list(outputs)
    if name is None and position >= len(names):
        raise LowerdeckError(
            f"the decoder needs the {what} as output {position + 1}, and the model returns {', '.join(names)}; name "
            "the outputs in task.options.decoder"
        )
    called = name if name is not None else names[position]
    values = output_choice.chosen(outputs, called, "task.options.decoder")
    if values.ndim != 2 or (width is not None and values.shape[1] != width):
        wanted = f"[1, n, {width if width is not None else 'classes'}]"
        raise LowerdeckError(
            f"the output {called} has shape {[1, *values.shape]}, and the {what} need {wanted}; name another output in "
            "task.options.decoder, or choose another decoder"
        )
    return values.astype(np.float64)
