"""Metrics, confusion pairs and the accuracy of each class."""

from __future__ import annotations

import hashlib
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lowerdeck.artifacts import paths
from lowerdeck.artifacts.files import (
    json_text,
    read_table,
    sha256,
    together,
    write_bytes,
    write_json,
    write_table,
    write_text,
)
from lowerdeck.artifacts.task_pictures import write_pictures
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.evaluation.defects import defects
from lowerdeck.evaluation.intervals import HIGH, LOW, wilson_interval
from lowerdeck.evaluation.metric_names import class_labels, wholly_masked
from lowerdeck.formats.tensor_header import METADATA, read_header

if TYPE_CHECKING:
    from lowerdeck.evaluation.task_metrics import Measured

_DIGEST = "metrics_sha256"
"""Key of the SHA-256 of metrics.json in the header of draws.safetensors."""


def write_evaluation(
    metrics: dict[str, Any], measured: Measured, digests: Sequence[str], worst: Sequence[bytes] = ()
) -> None:
    """Write draws, confusion pairs, classes, pictures, digests of the samples used, and last the metrics; show defects.

    Args:
        metrics: The content of metrics.json.
        measured: Draws of the bootstrap, and actual and predicted classes; the pairs of the last program are written,
            and the accuracy of all.
        digests: Of the samples, in order.
        worst: Images of the worst samples.
    """
    import numpy as np
    from safetensors.numpy import save

    stored = {name: np.ascontiguousarray(values, dtype=np.float32) for name, values in measured.draws.items()}
    text = json_text(metrics)
    pairs = list(measured.confusion.values())[-1].tolist() if measured.confusion else []
    named = class_labels(measured.class_names)
    answers = [(named(actual), named(guess)) for actual, guess in pairs]
    with together():
        write_bytes(paths.DRAWS, save(stored, {_DIGEST: hashlib.sha256(text.encode()).hexdigest()}))
        write_table(paths.CONFUSION, ("actual", "predicted"), answers)
        _write_classes(measured.confusion, named)
        write_pictures(measured.pictures, worst)
        write_json(paths.EVALUATION_SAMPLES, list(digests))
        write_text(paths.METRICS, text)  # last: pages and commands take its time for that of the evaluation
    for defect in defects(metrics):
        print(f"evaluate: the build {defect}", file=sys.stderr)
    for output in wholly_masked(metrics):
        print(f"evaluate: masks leave nothing of {output} in any sample: its metrics are not defined", file=sys.stderr)


def check_metrics() -> None:
    """Check that the metrics in build/ are those that evaluate wrote: a table would show whatever was made of them.

    Raises:
        LowerdeckError: they were changed, or are of another build than the draws beside them.
    """
    if not (paths.METRICS.is_file() and paths.DRAWS.is_file()):
        return
    try:
        with paths.DRAWS.open("rb") as file:
            header, _ = read_header(file)
        recorded = dict(header.get(METADATA, {})).get(_DIGEST)  # of earlier versions: none
    except (ValueError, TypeError):  # damage, of which `read_draws` speaks where draws are needed
        return
    if recorded is not None and recorded != sha256(paths.METRICS):
        raise LowerdeckError(
            f"{paths.BUILD} contains parts of different builds, or was edited: {paths.METRICS} is not what evaluate "
            f"wrote beside {paths.DRAWS}. After `git checkout`, `dvc checkout` restores the rest of that commit's "
            "build; otherwise `dvc repro` makes it again"
        )


def read_draws(content: bytes) -> dict[str, Any]:
    """Metric -> its value in every draw of the bootstrap, from the content of a build's draws.safetensors.

    Raises:
        LowerdeckError: the content is damaged.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        return dict(load(content))
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise LowerdeckError(f"{paths.DRAWS.name} of a build is damaged: {error}") from error


def _write_classes(confusion: Mapping[str, Any], named: Callable[[int], str]) -> None:
    """Write one row per class: its samples, and each program's accuracy with the ends of its 95 % interval."""
    import numpy as np

    header = ["class", "num_samples"]
    header += [f"{program}_accuracy{end}" for program in confusion for end in ("", LOW, HIGH)]
    rows = []
    actual = next(iter(confusion.values()))[:, 0] if confusion else np.zeros(0, dtype=np.int64)
    for label in np.unique(actual):
        members = actual == label
        row: list[object] = [named(int(label)), int(members.sum())]
        for pairs in confusion.values():
            correct = int((pairs[members, 1] == label).sum())
            row += [correct / int(members.sum()), *wilson_interval(correct, int(members.sum()))]
        rows.append(row)
    write_table(paths.CLASSES, header, rows)


@dataclass(frozen=True, kw_only=True)
class Confusion:
    """Confusion matrix."""

    labels: tuple[str, ...]
    """Classes that occur as actual or predicted ones, in ascending order."""
    pairs: Mapping[tuple[str, str], int]
    """(actual, predicted) -> number of samples; pairs of which there are none may be left out."""

    @property
    def counts(self) -> list[list[int]]:
        """[actual][predicted], both in the order of `labels`; for few classes."""
        return [[self.pairs.get((actual, predicted), 0) for predicted in self.labels] for actual in self.labels]


def read_confusion(path: Path) -> Confusion | None:
    """The confusion matrix of the pairs in the CSV at `path`; None if no sample has a label.

    Raises:
        LowerdeckError: the file is missing or damaged.
    """
    pairs = Counter(read_table(path, lambda row: (row["actual"], row["predicted"])))
    if not pairs:
        return None
    labels = sorted({label for pair in pairs for label in pair}, key=_numbers_first)
    return Confusion(labels=tuple(labels), pairs=pairs)


@dataclass(frozen=True, kw_only=True)
class ClassAccuracies:
    """Accuracy of each program on one class: a row of classes.csv."""

    label: str
    num_samples: int
    accuracies: Mapping[str, tuple[float, float, float]]
    """Program -> accuracy and the ends of its 95 % interval, as fractions."""


def read_classes(path: Path) -> list[ClassAccuracies]:
    """The classes in the CSV at `path`; empty if no sample has a label.

    Raises:
        LowerdeckError: the file is missing or damaged.
    """

    def parsed(row: Mapping[str, str]) -> ClassAccuracies:
        accuracies = {
            name.removesuffix("_accuracy"): (float(row[name]), float(row[name + LOW]), float(row[name + HIGH]))
            for name in row
            if name.endswith("_accuracy")
        }
        return ClassAccuracies(label=row["class"], num_samples=int(row["num_samples"]), accuracies=accuracies)

    return read_table(path, parsed)


def _numbers_first(label: str) -> tuple[bool, int, str]:
    return (not label.isdecimal(), int(label) if label.isdecimal() else 0, label)
