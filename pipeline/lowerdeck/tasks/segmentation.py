"""A class for every pixel: the model returns scores of the classes, the target is a mask of class indices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.contracts.pictures import Overlay
from lowerdeck.contracts.tasks import TaskMetric
from lowerdeck.evaluation.records import predicted_classes
from lowerdeck.tasks import outputs as output_choice

TARGETS = ("mask", "array")
MAX_DETAILED = 256
"""Most classes whose IoU is recorded one by one."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Options:
    """Fields of `task.options`."""

    output: str | None = None
    """Name of the output with scores [1, classes, h, w]; null for the first. One channel is the logit of class 1."""
    ignore: int | None = 255
    """Value of the mask that marks pixels without a class, as negative values do; null for none."""


def metrics(options: Options) -> Sequence[TaskMetric]:
    """Mean intersection over union, the share of pixels that are right, and the mean Dice coefficient (F1)."""
    return (TaskMetric(name="miou"), TaskMetric(name="pixel_accuracy"), TaskMetric(name="dice"))


def record(options: Options, outputs: Mapping[str, Any], target: Any, inputs: Sequence[Any] = ()) -> Mapping[str, Any]:
    """Numbers of pixels of each class: `both`, `actual` and `predicted`, int32 [classes]; `ignored`, of no class."""
    predicted, mask, num_classes = _judged(options, outputs, target)
    valid = ~_unknown(options, mask)
    actual, predicted = mask[valid], predicted[valid]
    if len(actual) and actual.max() >= num_classes:
        raise LowerdeckError(
            f"a mask has the classes {int(actual.min())} ... {int(actual.max())} and the model {num_classes}; correct "
            "the masks, or name the value of pixels without a class as task.options.ignore"
        )
    counts = {"num_scores": np.int64(num_classes), "ignored": np.int64((mask == options.ignore).sum())}
    members = {"both": actual[actual == predicted], "actual": actual, "predicted": predicted[predicted >= 0]}
    return counts | {
        name: np.bincount(found, minlength=num_classes).astype(np.int32) for name, found in members.items()
    }


def check_targets(options: Options, records: Mapping[str, Any]) -> None:
    """Refuse masks with pixels of one class and others that do not count: of 0 and 255, the foreground did not."""
    classes = np.flatnonzero(records["actual"].sum(axis=0))
    if len(classes) < 2 and records["ignored"].any():
        raise LowerdeckError(
            f"all evaluation masks together have the values {', '.join(map(str, [*classes, options.ignore]))}, and "
            f"pixels of {options.ignore} do not count (task.options.ignore): there is no second class. Store masks of "
            "two classes with 0 and 1, or as PNGs of 1 bit, or set task.options.ignore to the value of pixels without "
            "a class, null for none"
        )


def _unknown(options: Options, mask: Any) -> Any:
    """Which pixels have no class, bool [h x w]."""
    return (mask < 0) | (mask == options.ignore)


def _judged(options: Options, outputs: Mapping[str, Any], target: Any) -> tuple[Any, Any, int]:
    """The predicted class of every pixel, -1 where a score is NaN, the mask (int64), and the number of classes."""
    scores = output_choice.chosen(outputs, options.output)
    if scores.ndim != 3:
        raise LowerdeckError(
            f"the model returns {[1, *scores.shape]} where segmentation needs [1, classes, height, width]; choose the "
            f"output with task.options.output (there are: {', '.join(outputs)}), or another task"
        )
    num_classes = max(2, len(scores))
    mask = output_choice.array_target(target, "segmentation")
    mask = mask[0] if mask.ndim == 3 and len(mask) == 1 else mask
    if mask.shape != scores.shape[1:] or not np.issubdtype(mask.dtype, np.integer):
        raise LowerdeckError(
            f"the model returns {list(scores.shape[1:])} pixels and the mask is {mask.dtype} {list(mask.shape)}; store "
            "masks of integers at the size of the output, or let the model resize its scores"
        )
    if len(scores) == 1:
        scores = np.concatenate([np.zeros_like(scores), scores])
    return predicted_classes(scores, 0), mask.astype(np.int64), num_classes  # of whatever kind, it can hold -1


def measure(options: Options, records: Mapping[str, Any], weights: Floats) -> Mapping[str, Floats]:
    """See `metrics`; means are over the classes that occur in a mask or a prediction."""
    both, actual, predicted = (weights @ records[name] for name in ("both", "actual", "predicted"))
    iou = output_choice.ratio(both, actual + predicted - both)
    dice = output_choice.ratio(2 * both, actual + predicted)
    return {
        "miou": np.nanmean(iou, axis=1),
        "pixel_accuracy": output_choice.ratio(both.sum(axis=1), actual.sum(axis=1)),
        "dice": np.nanmean(dice, axis=1),
    }


def details(options: Options, records: Mapping[str, Any]) -> Mapping[str, float]:
    """The intersection over union of each class that occurs, as `classes.N.iou`."""
    both, actual, predicted = (records[name].sum(axis=0) for name in ("both", "actual", "predicted"))
    iou = output_choice.ratio(both, actual + predicted - both)
    return {f"classes.{label}.iou": float(value) for label, value in enumerate(iou[:MAX_DETAILED])}


def loss(options: Options, record: Mapping[str, Any]) -> float:
    """1 minus the mean intersection over union of the classes in one image."""
    union = record["actual"] + record["predicted"] - record["both"]
    return 1.0 - float((record["both"][union > 0] / union[union > 0]).mean()) if union.any() else 0.0


def overlay(
    options: Options, outputs: Mapping[str, Any], target: Any, inputs: Sequence[Any]
) -> tuple[Overlay, Overlay]:
    """Both masks; pixels without a class are drawn in neither."""
    predicted, mask, _ = _judged(options, outputs, target)
    unknown = _unknown(options, mask)
    return Overlay(mask=np.where(unknown, -1, mask)), Overlay(mask=np.where(unknown, -1, predicted))
