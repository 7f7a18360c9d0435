"""Metrics, confusion pairs and the accuracy of each class."""

from __future__ import annotations

import csv
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lowerdeck.artifacts import paths
from lowerdeck.artifacts.files import write_json, write_table
from lowerdeck.contracts.evaluation import ClassMetrics, Outputs
from lowerdeck.evaluation.defects import defects
from lowerdeck.evaluation.intervals import HIGH, LOW, wilson_interval


def write_evaluation(
    metrics: dict[str, Any], outputs: Outputs, digests: Sequence[str], classes: Sequence[ClassMetrics] = ()
) -> None:
    """Write metrics, classes, digests of the samples used, and confusion pairs of the delegated program; show defects.

    Confusion pairs are those of the quantized program if the delegated one was not executed.
    """
    write_json(paths.METRICS, metrics)
    rows: list[tuple[str, str]] = []
    if outputs.labels is not None:
        program = "delegated" if "delegated" in outputs.logits else "quantized"
        predicted = outputs.logits[program].argmax(axis=1)
        rows = [(str(actual), str(guess)) for actual, guess in zip(outputs.labels, predicted, strict=True)]
    write_table(paths.CONFUSION, ("actual", "predicted"), rows)
    _write_classes(classes, list(outputs.logits))
    write_json(paths.EVALUATION_SAMPLES, list(digests))
    for defect in defects(metrics):
        print(f"evaluate: the build {defect}", file=sys.stderr)


def _write_classes(classes: Sequence[ClassMetrics], programs: Sequence[str]) -> None:
    """Write one row per class: its samples, and each program's accuracy with the ends of its 95 % interval."""
    header = ["class", "num_samples"]
    header += [f"{program}_accuracy{end}" for program in programs for end in ("", LOW, HIGH)]
    rows = []
    for metrics in classes:
        row: list[object] = [metrics.label, metrics.num_samples]
        for program in programs:
            correct = metrics.correct[program]
            row += [correct / metrics.num_samples, *wilson_interval(correct, metrics.num_samples)]
        rows.append(row)
    write_table(paths.CLASSES, header, rows)


@dataclass(frozen=True, kw_only=True)
class Confusion:
    """Confusion matrix."""

    labels: tuple[str, ...]
    """Classes that occur as actual or predicted ones, in ascending order."""
    counts: tuple[tuple[int, ...], ...]
    """[actual][predicted], both in the order of `labels`."""


def read_confusion(path: Path) -> Confusion | None:
    """The confusion matrix of the pairs in the CSV at `path`; None if no sample has a label."""
    with path.open(newline="") as file:
        pairs = Counter((row["actual"], row["predicted"]) for row in csv.DictReader(file))
    if not pairs:
        return None
    labels = sorted({label for pair in pairs for label in pair}, key=_numbers_first)
    counts = tuple(tuple(pairs[actual, predicted] for predicted in labels) for actual in labels)
    return Confusion(labels=tuple(labels), counts=counts)


@dataclass(frozen=True, kw_only=True)
class ClassAccuracies:
    """Accuracy of each program on one class: a row of classes.csv."""

    label: str
    num_samples: int
    accuracies: Mapping[str, tuple[float, float, float]]
    """Program -> accuracy and the ends of its 95 % interval, as fractions."""


def read_classes(path: Path) -> list[ClassAccuracies]:
    """The classes in the CSV at `path`; empty if no sample has a label."""
    classes = []
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            accuracies = {
                name.removesuffix("_accuracy"): (float(row[name]), float(row[name + LOW]), float(row[name + HIGH]))
                for name in row
                if name.endswith("_accuracy")
            }
            classes.append(
                ClassAccuracies(label=row["class"], num_samples=int(row["num_samples"]), accuracies=accuracies)
            )
    return classes


def _numbers_first(label: str) -> tuple[bool, int, str]:
    return (not label.isdecimal(), int(label) if label.isdecimal() else 0, label)
