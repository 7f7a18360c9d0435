"""One class for each sample: the model returns a row of scores, the target is a class index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from lowerdeck.contracts.pictures import Overlay
from lowerdeck.contracts.tasks import TaskMetric
from lowerdeck.evaluation.records import predicted_classes
from lowerdeck.tasks import outputs as output_choice

TARGETS = ("class",)
_COUNTED_AT_ONCE = 1 << 20
"""Weights that are counted by one call: many calls take time, and large ones memory."""
_MULTIPLIED_AT_ONCE = 1 << 18
"""Products of a call: OpenBLAS starts threads for larger ones, which wait more than they compute."""
NUM_BINS = 15
"""Bins of the calibration error: Guo et al., "On Calibration of Modern Neural Networks", ICML 2017, section 5."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Options:
    """Fields of `task.options`."""

    output: str | None = None
    """Name of the output with the scores [1, classes]; null for the first one."""
    top_k: list[int] = field(default_factory=lambda: [5])
    """For each k, the share of samples whose class is among the k highest scores, as `topK_accuracy`."""
    scores: Literal["logits", "probabilities"] = "logits"
    """What the output holds; the calibration error takes the softmax of logits."""

    def __post_init__(self) -> None:
        if not all(k > 1 for k in self.top_k) or len(set(self.top_k)) < len(self.top_k):
            raise ValueError(f"top_k is {self.top_k}; it must be a list of different numbers above 1, e.g. [3, 5]")


def metrics(options: Options) -> Sequence[TaskMetric]:
    """Accuracy, top-k accuracies, F1 (the mean over classes) and the expected calibration error."""
    return (
        TaskMetric(name="accuracy", hits="hit"),
        *(TaskMetric(name=f"top{k}_accuracy", hits=f"hit_{k}") for k in options.top_k),
        TaskMetric(name="f1"),
        TaskMetric(name="calibration_error", better="min"),
    )


def record(options: Options, outputs: Mapping[str, Any], target: Any, inputs: Sequence[Any] = ()) -> Mapping[str, Any]:
    """Whether the sample is recognized, its class, the predicted one, and the confidence.

    A class as good as the target's counts before it where its index is lower, as in `argmax`. Where a score is NaN, no
    class is recognized, and -1 predicted.
    """
    scores = output_choice.scores(outputs, options.output, "classification")
    found: dict[str, Any] = {"predicted": np.int64(predicted_classes(scores, 0)), "num_scores": np.int64(len(scores))}
    found["confidence"] = np.float64(_probabilities(options, scores)[found["predicted"]])
    if target is None:
        return {name: np.asarray(value) for name, value in found.items()}
    label = output_choice.class_index(target, len(scores), "classification")
    rank = int((scores > scores[label]).sum() + (scores[:label] == scores[label]).sum())
    if found["predicted"] < 0:
        rank = len(scores)
    found |= {"label": np.int64(label), "hit": np.bool_(rank == 0)}
    found |= {f"hit_{k}": np.bool_(rank < k) for k in options.top_k}
    return {name: np.asarray(value) for name, value in found.items()}


def record_many(
    options: Options, outputs: Mapping[str, Any], targets: Sequence[Any]
) -> Mapping[str, npt.NDArray[Any]] | None:
    """`record` of several samples at once; None where one of them needs a closer look."""
    scores = output_choice.many_scores(outputs, options.output)
    if scores is None or not all(type(target) is int and 0 <= target < scores.shape[1] for target in targets):
        return None
    if not np.isfinite(scores).all():
        return None
    rows, labels, places = np.arange(len(scores)), np.array(targets, np.int64), np.arange(scores.shape[1])
    predicted = scores.argmax(axis=1)
    own = scores[rows, labels][:, None]
    rank = (scores > own).sum(axis=1) + ((scores == own) & (places < labels[:, None])).sum(axis=1)
    return {
        "predicted": predicted,
        "num_scores": np.full(len(scores), scores.shape[1]),
        "confidence": _probabilities(options, scores)[rows, predicted],
        "label": labels,
        "hit": rank == 0,
        **{f"hit_{k}": rank < k for k in options.top_k},
    }


def measure(options: Options, records: Mapping[str, Any], weights: Floats) -> Mapping[str, Floats]:
    """See `metrics`; top-k accuracies only where the model has more than k classes."""
    total = weights.sum(axis=1)
    found = {"accuracy": (weights @ records["hit"]) / total}
    for k in options.top_k:
        if records["num_scores"][0] > k:
            found[f"top{k}_accuracy"] = (weights @ records[f"hit_{k}"]) / total
    return found | {"f1": _f1(records, weights), "calibration_error": _calibration_error(records, weights)}


def agreement(options: Options, records: Mapping[str, Any], other: Mapping[str, Any]) -> npt.NDArray[np.bool_]:
    """On which samples two programs have the same top-1 class, bool [n]."""
    same: npt.NDArray[np.bool_] = records["predicted"] == other["predicted"]
    return same


def confusion(options: Options, records: Mapping[str, Any]) -> npt.NDArray[np.int64]:
    """The actual and the predicted class of every sample, int64 [n x 2]."""
    pairs: npt.NDArray[np.int64] = np.stack([records["label"], records["predicted"]], axis=1)
    return pairs


def loss(options: Options, record: Mapping[str, Any]) -> float:
    """1 minus the confidence where the class is right, 1 plus it where it is wrong: sure and wrong comes first."""
    confidence = float(record["confidence"])
    return 1.0 - confidence if record["hit"] else 1.0 + confidence


def overlay(
    options: Options, outputs: Mapping[str, Any], target: Any, inputs: Sequence[Any]
) -> tuple[Overlay, Overlay]:
    """The sample's class, and the predicted one with its confidence."""
    found = record(options, outputs, target)
    predicted = Overlay(label=int(found["predicted"]), score=float(found["confidence"]))
    return Overlay(label=int(found["label"])), predicted


def _probabilities(options: Options, scores: Floats) -> Floats:
    """Those of one sample [c] or of several [b x c]."""
    if not np.isfinite(scores).all():  # its prediction counts, and has no confidence
        return np.zeros_like(scores)
    if options.scores == "probabilities":
        return scores
    exponents = np.exp(scores - scores.max(axis=-1, keepdims=True))
    probabilities: Floats = exponents / exponents.sum(axis=-1, keepdims=True)
    return probabilities


def _f1(records: Mapping[str, Any], weights: Floats) -> Floats:
    """The unweighted mean over the classes that occur, as sklearn.metrics.f1_score(average="macro")."""
    classes, codes = np.unique(np.stack([records["label"], records["predicted"]]), return_inverse=True)
    actual, predicted = codes.reshape(2, -1)
    hits = records["hit"]

    def counts(members: npt.NDArray[np.int64], chosen: Any = 1.0) -> Floats:
        """How often samples of each class were drawn [b x classes]: whole numbers, exact in any order of sums."""
        size = len(members) * len(classes)
        by_product = size <= _MULTIPLIED_AT_ONCE
        table = np.eye(len(classes))[members] * np.reshape(chosen, (-1, 1)) if by_product else None
        at_once = max(1, _MULTIPLIED_AT_ONCE // size if by_product else _COUNTED_AT_ONCE // len(members))
        found: list[Floats] = []
        for start in range(0, len(weights), at_once):
            part = weights[start : start + at_once]
            if table is not None:
                found.append(part @ table)
                continue
            places = members + len(classes) * np.arange(len(part))[:, None]  # each row has counts of its own
            counted: Any = np.bincount(places.ravel(), (part * chosen).ravel(), len(part) * len(classes))
            found.append(counted.reshape(len(part), len(classes)))
        return np.concatenate(found)

    both, either = 2 * counts(actual, hits), counts(actual) + counts(predicted)
    scores = output_choice.ratio(both, either)
    means: Floats = np.nanmean(scores[:, classes >= 0], axis=1)  # -1 is no class
    return means


def _calibration_error(records: Mapping[str, Any], weights: Floats) -> Floats:
    """The mean of |accuracy - confidence| over bins of equal width, weighted by their samples."""
    bins = np.clip(np.ceil(records["confidence"] * NUM_BINS).astype(int) - 1, 0, NUM_BINS - 1)
    members = np.eye(NUM_BINS)[bins]
    gap = (records["hit"].astype(np.float64) - records["confidence"])[:, None] * members
    error: Floats = np.abs(weights @ gap).sum(axis=1) / weights.sum(axis=1)
    return error
