"""Boxes that the model has decoded itself: DETR, YOLOv8's [1, 4 + classes, n], or what a wrapper returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from lowerdeck.contracts.detection import Detections
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.tasks import outputs as output_choice
from lowerdeck.tasks.decoders import selection


@dataclass(frozen=True, kw_only=True)
class Options(selection.SelectionOptions):
    """Keys of `task.options.decoder`."""

    boxes: str | None = None
    """Name of the output with boxes [1, n, 4]; null for the first one."""
    scores: str | None = None
    """Name of the output with scores [1, n, classes]; null for the second one. Where the model has one output, it holds
    boxes and scores in one row, [1, n, 4 + classes] or [1, 4 + classes, n]."""
    candidates: Literal["rows", "columns"] | None = None
    """Where the model has one output, whether each row or each column of it is a candidate: `rows` for DETR's [1, n,
    4 + classes], `columns` for YOLOv8's [1, 4 + classes, n]. Null takes the longer dimension for n, if it is at least
    twice as long."""
    layout: Literal["xyxy", "yxyx", "xywh", "cxcywh"] = "xyxy"
    """Meaning of the four numbers: corners, or (`xywh`) left, top, width and height, or (`cxcywh`) the centre first."""
    is_normalized: bool = False
    """Whether boxes are fractions of the input's size instead of pixels."""
    activation: selection.Activation = "none"
    """What turns the stored scores into 0 ... 1."""
    has_objectness: bool = False
    """Whether the first score says how probable any object is, by which those of the classes are multiplied."""
    background: Literal["none", "first", "last"] = "none"
    """Which score is that of no object; it is dropped, so that `first` makes score 1 that of class 0."""


def decode(options: Options, outputs: Mapping[str, Any], size: tuple[int, int]) -> Detections:
    """See contracts.detection.Decoder."""
    if len(outputs) == 1 or (options.boxes is not None and options.boxes == options.scores):
        boxes, scores = _of_one_output(options, outputs)
    else:
        boxes = selection.rows(outputs, options.boxes, 0, "boxes", 4)
        scores = selection.rows(outputs, options.scores, 1, "scores")
    if len(boxes) != len(scores):
        raise LowerdeckError(
            f"the model returns {len(boxes)} boxes and scores of {len(scores)}; name the outputs in "
            "task.options.decoder.boxes and .scores"
        )
    scores = selection.activated(scores, options.activation)
    if options.has_objectness:
        scores = scores[:, :1] * scores[:, 1:]
    scores = {"none": scores, "first": scores[:, 1:], "last": scores[:, :-1]}[options.background]
    if options.is_normalized:
        boxes = boxes * np.array([size[1], size[0]] * 2 if options.layout != "yxyx" else [size[0], size[1]] * 2)
    return selection.selected(options, selection.corners(boxes, options.layout), scores, size)


def _of_one_output(options: Options, outputs: Mapping[str, Any]) -> tuple[Any, Any]:
    values = output_choice.chosen(outputs, options.boxes, "task.options.decoder.boxes").astype(np.float64)
    needed = {"rows": values.shape[-1:], "columns": values.shape[:1], None: values.shape}[options.candidates]
    if values.ndim != 2 or min(needed) < 5:
        raise LowerdeckError(
            f"the model returns {[1, *values.shape]}, and the decoder boxes needs [1, n, 4 + classes] or "
            f"[1, 4 + classes, n] (task.options.decoder.candidates is {options.candidates or 'null'}); choose another "
            "one in task.options.decoder, e.g. yolo or ssd for raw heads"
        )
    few, many = sorted(values.shape)
    if options.candidates is None and many < 2 * few:
        raise LowerdeckError(
            f"the model returns {[1, *values.shape]}, and nothing says whether its rows or its columns are "
            "candidates; set task.options.decoder.candidates: rows for [1, n, 4 + classes] such as DETR's, or columns "
            "for [1, 4 + classes, n] such as YOLOv8's"
        )
    are_columns = values.shape[0] < values.shape[1] if options.candidates is None else options.candidates == "columns"
    values = values.T if are_columns else values
    return values[:, :4], values[:, 4:]
