"""Which detections are right, and the precision that follows: COCO's definition, for many weightings at once.

Source: pycocotools.cocoeval, `evaluateImg` and `accumulate`, for all areas.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from lowerdeck.contracts.detection import Boxes, Detections

IOU_THRESHOLDS = np.linspace(0.5, 0.95, 10)
RECALLS = np.linspace(0.0, 1.0, 101)
"""Where the precision is read."""
_VALUES_AT_A_TIME = 4_000_000
"""Bounds the memory of a class's detections times draws: a few arrays of 32 MB."""

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]


def iou(detected: Floats, wanted: Floats, crowd: Flags) -> Floats:
    """Intersection over union of every pair, float64 [n x m]; over the detection's own area where `crowd`.

    Args:
        detected: [n x 4], left, top, right, bottom.
        wanted: [m x 4].
        crowd: bool [m].
    """
    low = np.maximum(detected[:, None, :2], wanted[None, :, :2])
    high = np.minimum(detected[:, None, 2:], wanted[None, :, 2:])
    common = np.clip(high - low, 0.0, None).prod(axis=2)
    own, other = (np.diff(boxes.reshape(-1, 2, 2), axis=1).prod(axis=(1, 2)) for boxes in (detected, wanted))
    union = np.where(crowd[None], own[:, None], own[:, None] + other[None] - common)
    return np.divide(common, union, out=np.zeros_like(common), where=union > 0)


def matches(found: Detections, wanted: Boxes) -> tuple[Flags, Flags]:
    """At which IoU thresholds each detection is right, and at which it is ignored, bool [n x thresholds] each.

    In the order of detections, each takes the object of its class with the largest IoU that is still free, or else a
    crowd, which stays free and makes the detection ignored.
    """
    matched = np.zeros((len(found.classes), len(IOU_THRESHOLDS)), dtype=bool)
    ignored = np.zeros_like(matched)
    overlaps = iou(found.boxes, wanted.boxes, wanted.crowd)
    overlaps[found.classes[:, None] != wanted.classes[None]] = 0.0
    free = np.ones((len(IOU_THRESHOLDS), len(wanted.classes)), dtype=bool)
    thresholds = np.minimum(IOU_THRESHOLDS, 1 - 1e-10)[:, None]
    for number in np.flatnonzero((overlaps >= IOU_THRESHOLDS[0]).any(axis=1)):
        fits = (overlaps[number][None] >= thresholds) & free
        single = np.where(fits & ~wanted.crowd[None], overlaps[number][None], -1.0)
        # Of equal ones the last, as in pycocotools.
        best = single.shape[1] - 1 - single[:, ::-1].argmax(axis=1)
        matched[number] = single[np.arange(len(single)), best] >= 0
        free[matched[number].nonzero()[0], best[matched[number]]] = False
        ignored[number] = ~matched[number] & (fits & wanted.crowd[None]).any(axis=1)
    return matched, ignored


def average_precisions(records: Mapping[str, Any], label: int, weights: Floats) -> Floats:
    """Average precision of one class at every IoU threshold, float64 [b x thresholds]; NaN without an object.

    Args:
        records: Those of tasks.detection, each [n x ...].
        label: The class.
        weights: float64 [b x n], how often each image counts.
    """
    return _of_class(records, label, weights, _areas, len(IOU_THRESHOLDS))


def precisions_50(records: Mapping[str, Any], label: int, weights: Floats) -> Floats:
    """Precision of one class at RECALLS and an IoU of 0.5, float64 [b x recalls]; NaN without an object."""
    return _of_class(records, label, weights, functools.partial(_precisions, 0), len(RECALLS))


def _of_class(
    records: Mapping[str, Any], label: int, weights: Floats, read: Callable[..., Floats], width: int
) -> Floats:
    """What `read` says of one class, float64 [b x width], for few draws at a time; NaN without an object."""
    images, columns = np.nonzero(records["class"] == label)
    order = np.argsort(-records["score"][images, columns], kind="stable")
    images, columns = images[order], columns[order]
    matched, ignored = records["matched"][images, columns], records["ignored"][images, columns]
    objects = weights @ records["objects"][:, label]
    found, known = np.full((len(weights), width), np.nan), np.flatnonzero(objects > 0)
    at_a_time = max(1, _VALUES_AT_A_TIME // max(1, len(images)))
    for start in range(0, len(known), at_a_time):
        draws = known[start : start + at_a_time]
        found[draws] = read(matched, ignored, weights[np.ix_(draws, images)], objects[draws])
    return found


def precisions_at_recalls(matched: Flags, ignored: Flags, weights: Floats, objects: Floats) -> Floats:
    """The highest precision at each of RECALLS or above, float64 [b x recalls].

    Args:
        matched: bool [d], whether each detection is right, highest score first.
        ignored: bool [d], whether it does not count.
        weights: float64 [b x d], how often it counts.
        objects: float64 [b], the number of objects, above 0.
    """
    right = np.flatnonzero(matched)
    counted = np.cumsum(weights * ~ignored if ignored.any() else weights, axis=1)[:, right]
    true = np.cumsum(weights[:, right], axis=1)
    precision = np.divide(true, counted, out=np.zeros_like(true), where=counted > 0)
    # A column of zeros behind: recalls that are never reached have precision 0.
    highest = np.pad(np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1], ((0, 0), (0, 1)))
    reached = true / objects[:, None]
    return np.stack([row[np.searchsorted(recall, RECALLS)] for row, recall in zip(highest, reached, strict=True)])


def _precisions(threshold: int, matched: Any, ignored: Any, weights: Floats, objects: Floats) -> Floats:
    right, skipped = ((bits >> threshold & 1).astype(bool) for bits in (matched, ignored))
    return precisions_at_recalls(right, skipped, weights, objects)


def _areas(matched: Any, ignored: Any, weights: Floats, objects: Floats) -> Floats:
    """Average precision at every IoU threshold, float64 [b x thresholds]."""
    thresholds = range(len(IOU_THRESHOLDS))
    return np.stack([_precisions(t, matched, ignored, weights, objects).mean(axis=1) for t in thresholds], axis=1)
