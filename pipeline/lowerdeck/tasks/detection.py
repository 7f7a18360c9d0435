"""Objects in an image: a decoder turns what the model returns into boxes, the target are the boxes that are there.

Mean average precision as COCO defines it (pycocotools, all areas); tests compare both on the same arrays.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from lowerdeck.contracts.detection import Boxes, Detections
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.contracts.pictures import Curve, Overlay
from lowerdeck.contracts.tasks import TaskMetric
from lowerdeck.tasks import box_matching, decoders
from lowerdeck.tasks.box_matching import IOU_THRESHOLDS

TARGETS = ("boxes", "array")
NEEDS_INPUTS = True
NESTED = {"decoder": decoders}
MAX_DETAILED = 256
"""Most classes whose average precision is recorded one by one."""
SHOWN_SCORE = 0.3
"""Detections with lower scores are not drawn."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Options:
    """Fields of `task.options`."""

    decoder: dict[str, Any] = field(default_factory=lambda: {"name": "boxes"})
    """What turns the outputs into boxes: `name`, a module of pipeline/lowerdeck/tasks/decoders (`boxes`, `ssd`,
    `torchvision`, `yolo`) or the dotted name of a module of a package under `plugins`, and its options."""
    max_detections: int = 100
    """Most detections of an image that count, of all classes together: those with the highest scores, as in firmware.
    pycocotools counts as many of each class; for its number where more than 100 are found in an image, set 1000."""

    def __post_init__(self) -> None:
        if not 1 <= self.max_detections <= 1000:
            raise ValueError(f"max_detections is {self.max_detections}; it must be from 1 to 1000")


def metrics(options: Options) -> Sequence[TaskMetric]:
    """Mean average precision over classes and IoU thresholds 0.5, 0.55 ... 0.95, and over classes at 0.5 alone."""
    return (TaskMetric(name="map"), TaskMetric(name="map_50"))


def record(options: Options, outputs: Mapping[str, Any], target: Any, inputs: Sequence[Any]) -> Mapping[str, Any]:
    """Score and class of every detection, highest score first, with the IoU thresholds at which it is right or ignored.

    Arrays [max_detections], filled up with the class -1, and the numbers of objects of each class and of classes.
    """
    found, wanted = decoded(options, outputs, inputs), _boxes(target)
    if len(wanted.classes) and not 0 <= wanted.classes.min() <= wanted.classes.max() < found.num_classes:
        raise LowerdeckError(
            f"an image has objects of the classes {int(wanted.classes.min())} ... {int(wanted.classes.max())}, and the "
            f"model {found.num_classes} classes; choose a dataset that fits the model, or correct task.options.decoder"
        )
    matched, ignored = box_matching.matches(found, wanted)
    missing = options.max_detections - len(found.classes)
    objects = np.bincount(wanted.classes[~wanted.crowd], minlength=found.num_classes)
    return {
        "score": np.pad(found.scores, (0, missing)),
        "class": np.pad(found.classes.astype(np.int16), (0, missing), constant_values=-1),
        "matched": np.pad(_bits(matched), (0, missing)),
        "ignored": np.pad(_bits(ignored), (0, missing)),
        "objects": objects.astype(np.uint16),
        "num_scores": np.int64(found.num_classes),
    }


def measure(options: Options, records: Mapping[str, Any], weights: Floats) -> Mapping[str, Floats]:
    """See `metrics`; classes without an object do not count."""
    total, total_50, known = np.zeros(len(weights)), np.zeros(len(weights)), np.zeros(len(weights))
    for label in range(records["objects"].shape[1]):
        precisions = box_matching.average_precisions(records, label, weights)
        is_known = np.isfinite(precisions[:, 0])
        total += np.where(is_known, precisions.mean(axis=1), 0.0)
        total_50 += np.where(is_known, precisions[:, 0], 0.0)
        known += is_known
    with np.errstate(invalid="ignore"):
        return {"map": total / known, "map_50": total_50 / known}


def details(options: Options, records: Mapping[str, Any]) -> Mapping[str, float]:
    """The average precision (0.5 ... 0.95) of each class, as `classes.N.average_precision`."""
    once = np.ones((1, len(records["objects"])))
    return {
        f"classes.{label}.average_precision": float(box_matching.average_precisions(records, label, once).mean())
        for label in range(min(records["objects"].shape[1], MAX_DETAILED))
    }


def pictures(options: Options, records: Mapping[str, Any]) -> Sequence[Curve]:
    """Precision over recall at an IoU of 0.5, the mean of the classes that occur."""
    once = np.ones((1, len(records["objects"])))
    found = [box_matching.precisions_50(records, label, once) for label in range(records["objects"].shape[1])]
    known = [precisions[0] for precisions in found if np.isfinite(precisions).all()]
    return [Curve(name="precision_recall", x=box_matching.RECALLS, y=np.mean(known, axis=0))] if known else []


def loss(options: Options, record: Mapping[str, Any]) -> float:
    """1 minus F1 of the detections that would be drawn in one image, the mean of all IoU thresholds."""
    drawn, objects = (record["class"] >= 0) & (record["score"] >= SHOWN_SCORE), int(record["objects"].sum())
    scores = []
    for threshold in range(len(IOU_THRESHOLDS)):
        right, ignored = ((record[name][drawn] >> threshold & 1).sum() for name in ("matched", "ignored"))
        total = int(drawn.sum()) - int(ignored) + objects
        scores.append(2 * int(right) / total if total else 1.0)
    return 1.0 - sum(scores) / len(scores)


def overlay(
    options: Options, outputs: Mapping[str, Any], target: Any, inputs: Sequence[Any]
) -> tuple[Overlay, Overlay]:
    """The objects, and the detections with a score from SHOWN_SCORE on."""
    found = decoded(options, outputs, inputs)
    shown = found.scores >= SHOWN_SCORE
    boxes = Detections(
        boxes=found.boxes[shown],
        scores=found.scores[shown],
        classes=found.classes[shown],
        num_classes=found.num_classes,
    )
    return Overlay(boxes=_boxes(target)), Overlay(boxes=boxes)


def decoded(options: Options, outputs: Mapping[str, Any], inputs: Sequence[Any]) -> Detections:
    """The detections of one image, the `max_detections` with the highest scores first."""
    decoder, chosen = _decoder(json.dumps(options.decoder, sort_keys=True))
    image = np.asarray(inputs[0])
    if image.ndim != 4:
        raise LowerdeckError(
            f"detection needs an image [1, channels, height, width] as first input, and it is {list(image.shape)}"
        )
    found = decoder.decode(chosen, outputs, (image.shape[2], image.shape[3]))
    best = np.argsort(-found.scores, kind="stable")[: options.max_detections]
    return Detections(
        boxes=found.boxes[best],
        scores=found.scores[best],
        classes=found.classes[best],
        num_classes=found.num_classes,
    )


@cache
def _decoder(chosen: str) -> tuple[Any, Any]:
    """The decoder with its options, from JSON."""
    values = json.loads(chosen)
    decoder = decoders.source(values.pop("name"))
    return decoder, decoder.Options(**values)


def _bits(flags: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint16]:
    """bool [n x thresholds] -> uint16 [n], bit t for threshold t."""
    packed: npt.NDArray[np.uint16] = (flags << np.arange(len(IOU_THRESHOLDS))).sum(axis=1).astype(np.uint16)
    return packed


def _boxes(target: Any) -> Boxes:
    """The target; an array has rows of left, top, right, bottom and class, which is negative in rows to leave out."""
    if isinstance(target, Boxes):
        return target
    rows = np.asarray(target, dtype=np.float64) if isinstance(target, np.ndarray) else np.zeros(0)
    if rows.ndim != 2 or rows.shape[1] != 5:
        shape = f"an array {list(rows.shape)}" if isinstance(target, np.ndarray) else type(target).__name__
        raise LowerdeckError(
            f"detection needs boxes as target, and the dataset has {shape}; choose dataset: coco, or store `targets` "
            "[n, boxes, 5] of left, top, right and bottom in pixels and the class, -1 to fill up (dataset arrays)"
        )
    rows = rows[rows[:, 4] >= 0]
    if not np.isfinite(rows).all() or (rows[:, 4] % 1).any() or (rows[:, 2:4] <= rows[:, :2]).any():
        raise LowerdeckError(
            "a target has boxes whose right is not beyond their left or whose bottom is not below their top, whose "
            "class is no integer, or that are not finite; store left, top, right, bottom and class"
        )
    return Boxes(boxes=rows[:, :4], classes=rows[:, 4].astype(np.int64), crowd=np.zeros(len(rows), dtype=bool))
