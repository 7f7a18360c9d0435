"""Normal or anomalous: a score of each sample, or the error of a reconstruction, is compared with the label 0 or 1.

Where the dataset names the recording that a sample belongs to (`groups`), the scores of a recording are averaged, and
recordings are resampled as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.contracts.pictures import Curve, Histogram
from lowerdeck.contracts.tasks import TaskMetric
from lowerdeck.tasks import outputs as output_choice
from lowerdeck.tasks import ranking

TARGETS = ("class",)
NEEDS_INPUTS = True

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Options:
    """Fields of `task.options`."""

    output: str | None = None
    """Name of the output; null for the first one."""
    score: Literal["reconstruction", "output"] = "reconstruction"
    """`reconstruction`: the mean squared error between the output and the first input; `output`: the output itself, one
    number, higher for anomalous samples."""
    max_false_positive_rate: float = 0.1
    """Limit of the partial area under the ROC curve, and of the share of normal samples above the threshold."""

    def __post_init__(self) -> None:
        if not 0 < self.max_false_positive_rate < 1:
            raise ValueError(f"max_false_positive_rate is {self.max_false_positive_rate}; it must be between 0 and 1")


def metrics(options: Options) -> Sequence[TaskMetric]:
    """Area under the ROC curve, its part up to the highest rate of false positives, and the recall at that rate."""
    return (TaskMetric(name="auc"), TaskMetric(name="partial_auc"), TaskMetric(name="recall_at_fpr"))


def record(options: Options, outputs: Mapping[str, Any], target: Any, inputs: Sequence[Any] = ()) -> Mapping[str, Any]:
    """Score, label and recording of a sample, scalars."""
    values = output_choice.chosen(outputs, options.output).astype(np.float64)
    label, group = (target["label"], target["group"]) if isinstance(target, Mapping) else (target, -1)
    if isinstance(label, (int, np.integer)) and label not in (0, 1):
        raise LowerdeckError(f"a sample has the label {label}; labels are 0 (normal) or 1 (anomalous): correct it")
    anomalous = output_choice.class_index(label, 2, "anomaly")
    if options.score == "output":
        if values.size != 1:
            raise LowerdeckError(
                f"the model returns {[1, *values.shape]} where anomaly needs one score; choose another output with "
                "task.options.output, or task.options.score: reconstruction"
            )
        score = float(values.ravel()[0])
    else:
        given = np.asarray(inputs[0]).astype(np.float64)
        if given.size != values.size:
            raise LowerdeckError(
                f"the model returns {[1, *values.shape]} for an input of {list(given.shape)}, and a reconstruction "
                "has as many values; choose another output with task.options.output, or task.options.score: output"
            )
        score = float(np.square(values.ravel() - given.ravel()).mean())
    return {"score": np.float64(score), "anomalous": np.bool_(anomalous), "group": np.int64(group)}


def check_targets(options: Options, records: Mapping[str, Any]) -> None:
    """Refuse samples that are all normal or all anomalous: the area under their ROC curve is not defined."""
    if (anomalous := records["anomalous"]).all() or not anomalous.any():
        found, missing = ("anomalous", "normal") if anomalous.any() else ("normal", "anomalous")
        raise LowerdeckError(
            f"all {len(anomalous)} evaluation samples are {found} (label {int(anomalous[0])}), and without {missing} "
            "ones no metric of anomaly is defined: add some"
        )


def units(options: Options, records: Mapping[str, Any]) -> npt.NDArray[np.int64]:
    """The recording of every sample, int64 [n], numbered from 0; each sample is one where the dataset names none."""
    if (records["group"] < 0).all():
        return np.arange(len(records["group"]))
    numbers: npt.NDArray[np.int64] = np.unique(records["group"], return_inverse=True)[1]
    return numbers


def measure(options: Options, records: Mapping[str, Any], weights: Floats) -> Mapping[str, Floats]:
    """See `metrics`."""
    anomalous, scores, first = _recordings(options, records)
    of_recordings, rate = weights[:, first], options.max_false_positive_rate
    return {
        "auc": ranking.roc_auc(anomalous, scores, of_recordings),
        "partial_auc": ranking.roc_auc(anomalous, scores, of_recordings, max_fpr=rate),
        "recall_at_fpr": ranking.recall_at(anomalous, scores, of_recordings, rate),
    }


def details(options: Options, records: Mapping[str, Any]) -> Mapping[str, float]:
    """The threshold of the recall, for firmware: scores from it on are anomalous."""
    anomalous, scores, _ = _recordings(options, records)
    return {"threshold": ranking.threshold_at(anomalous, scores, options.max_false_positive_rate)}


def pictures(options: Options, records: Mapping[str, Any]) -> Sequence[Curve | Histogram]:
    """The ROC curve with the point of the threshold, precision over recall, and the scores of both kinds."""
    anomalous, scores, _ = _recordings(options, records)
    groups = {"normal": scores[~anomalous], "anomalous": scores[anomalous]}
    shown = Histogram(label="score", groups=groups)
    if anomalous.all() or not anomalous.any():
        return [shown]
    x, threshold = np.linspace(0.0, 1.0, 101), ranking.threshold_at(anomalous, scores, options.max_false_positive_rate)
    chosen = tuple(float((values >= threshold).mean()) for values in groups.values())
    return [
        Curve(name="roc", x=x, y=ranking.true_rates_at(anomalous, scores, x), mark=(chosen[0], chosen[1])),
        Curve(name="precision_recall", x=x, y=ranking.precisions_at(anomalous, scores, x)),
        shown,
    ]


def _recordings(options: Options, records: Mapping[str, Any]) -> tuple[npt.NDArray[np.bool_], Floats, Any]:
    """Of every recording: whether it is anomalous, its mean score, and its first sample."""
    unit = units(options, records)
    _, first = np.unique(unit, return_index=True)
    scores = np.bincount(unit, records["score"]) / np.bincount(unit)
    return records["anomalous"][first], scores, first
