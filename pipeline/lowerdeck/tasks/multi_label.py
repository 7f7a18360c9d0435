"""Any number of labels for each sample: the model returns a score of each label, the target is 0 or 1 for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.contracts.pictures import Curve
from lowerdeck.contracts.tasks import TaskMetric
from lowerdeck.tasks import outputs as output_choice
from lowerdeck.tasks import ranking

TARGETS = ("array",)
MAX_DETAILED = 256
"""Most labels whose average precision is recorded one by one."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Options:
    """Fields of `task.options`."""

    output: str | None = None
    """Name of the output with the scores [1, labels]; null for the first one."""
    threshold: float = 0.0
    """A label with a higher score is predicted: 0 for logits, 0.5 for probabilities."""


def metrics(options: Options) -> Sequence[TaskMetric]:
    """Mean average precision over the labels, and the mean of their F1."""
    return (TaskMetric(name="map"), TaskMetric(name="f1"))


def record(options: Options, outputs: Mapping[str, Any], target: Any, inputs: Sequence[Any] = ()) -> Mapping[str, Any]:
    """Scores and targets, [labels]."""
    scores = output_choice.scores(outputs, options.output, "multi_label")
    wanted = output_choice.array_target(target, "multi_label")
    if wanted.shape != scores.shape or not np.isin(wanted, (0, 1)).all():
        raise LowerdeckError(
            f"the model returns {len(scores)} scores and the target has shape {list(wanted.shape)}"
            f"{'' if np.isin(wanted, (0, 1)).all() else ' with other values than 0 and 1'}; store 0 or 1 for each label"
        )
    return {"scores": scores, "positive": wanted.astype(np.bool_), "num_scores": np.int64(len(scores))}


def measure(options: Options, records: Mapping[str, Any], weights: Floats) -> Mapping[str, Floats]:
    """See `metrics`; labels without a positive sample do not count in the mean average precision."""
    scores, positive = records["scores"], records["positive"]
    predicted = np.where(np.isnan(scores), ~positive, scores > options.threshold)  # NaN is never right
    both, either = 2 * (weights @ (predicted & positive)), weights @ predicted + weights @ positive
    f1 = np.where(either > 0, both / np.where(either > 0, either, 1.0), 0.0)
    precisions = [
        ranking.average_precision(positive[:, label], scores[:, label], weights) for label in range(scores.shape[1])
    ]
    with np.errstate(invalid="ignore"):
        stacked = np.stack(precisions, axis=1)
        known = np.isfinite(stacked)
        mean = output_choice.ratio(np.where(known, stacked, 0.0).sum(axis=1), known.sum(axis=1))
    return {"map": mean, "f1": f1.mean(axis=1)}


def details(options: Options, records: Mapping[str, Any]) -> Mapping[str, float]:
    """The average precision of each label, as `classes.N.average_precision`."""
    scores, positive = records["scores"], records["positive"]
    once = np.ones((1, len(scores)))
    labels = range(min(scores.shape[1], MAX_DETAILED))
    return {
        f"classes.{label}.average_precision": float(
            ranking.average_precision(positive[:, label], scores[:, label], once)[0]
        )
        for label in labels
    }


def pictures(options: Options, records: Mapping[str, Any]) -> Sequence[Curve]:
    """Precision over recall, the mean of the labels that occur."""
    x, positive = np.linspace(0.0, 1.0, 101), records["positive"]
    labels = np.flatnonzero(positive.any(axis=0))
    each = [ranking.precisions_at(positive[:, label], records["scores"][:, label], x) for label in labels]
    return [Curve(name="precision_recall", x=x, y=np.mean(each, axis=0))] if each else []
