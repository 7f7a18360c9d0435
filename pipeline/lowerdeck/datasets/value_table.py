"""Numbers in the columns of CSV or parquet files, one file for each split: sensors, prices, features.

temperature,current,speed,fault        dataset.options: {inputs: [[temperature, current, speed]], label: fault}
21.5,0.25,1480,0
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from lowerdeck.contracts.errors import ConfigurationError
from lowerdeck.datasets import array_checks, class_names, preprocessing, splits, tables
from lowerdeck.datasets.faults import raise_faults
from lowerdeck.fingerprints import data


@dataclass(frozen=True, kw_only=True)
class Options:
    """Keys of `dataset.options`."""

    calibration: str
    """Path of the CSV or parquet file with calibration samples."""
    evaluation: str
    """Path of the CSV or parquet file with evaluation samples."""
    training: str | None = None
    """Path of a file with samples for quantization-aware training; null to learn from the calibration samples."""
    inputs: list[list[str]]
    """For every input of the model, the columns with its values, as many as it has elements."""
    mean: dict[str, float] = field(default_factory=dict)
    """Column -> what is subtracted from it; 0 for others."""
    std: dict[str, float] = field(default_factory=dict)
    """Column -> divisor after that; 1 for others."""
    label: str | None = None
    """Column with the class: a name, or an index if `classes` is empty."""
    classes: list[str] = field(default_factory=list)
    """Names of the classes, in the order of the model's outputs; empty where the column has indices."""
    values: list[str] = field(default_factory=list)
    """Columns with numbers that the outputs are compared with."""
    group: str | None = None
    """Column with the number of the recording that a row belongs to, beside `label`; all its rows have one label."""

    def __post_init__(self) -> None:
        if not self.inputs or not all(self.inputs):
            raise ValueError("inputs is empty; name the columns of each input, e.g. [[temperature, speed]]")
        if self.label and self.values:
            raise ValueError("label and values are set; name one of them, or none")
        if (self.classes or self.group) and not self.label:
            raise ValueError("classes or group is set without label; name the column with the classes")
        if twice := class_names.repeated(self.classes):
            raise ValueError(f"classes has {', '.join(twice)} twice; every class must have another name")
        known = {column for columns in self.inputs for column in columns}
        if unknown := sorted({*self.mean, *self.std} - known):
            raise ValueError(f"mean or std has {', '.join(unknown)}, which are no columns of inputs")
        preprocessing.check_divisors(self.std.values(), self.std)


def check(options: Options, input_shapes: Sequence[Sequence[int]]) -> None:
    """Raise ConfigurationError unless the columns fill the model's inputs."""
    shapes = preprocessing.shapes_without_batch(input_shapes)
    needed, given = [int(np.prod(shape)) for shape in shapes], [len(columns) for columns in options.inputs]
    if needed != given:
        raise ConfigurationError(
            f"dataset.options.inputs has {given} columns, and the model's inputs {[list(shape) for shape in shapes]} "
            f"have {needed} values; name one column for each value, in a list for each input"
        )


def target_kind(options: Options) -> str | None:
    """By the columns that are named."""
    return "class" if options.label else "array" if options.values else None


def fingerprint(options: Options) -> str:
    """SHA-256 over the files.

    Raises:
        LowerdeckError: a file is missing, or a row is wrong; the message lists all faults.
    """
    for name, path in _paths(options).items():
        _split(options, path, name, [[1, len(columns)] for columns in options.inputs], 0)
    return data.files_digest(_paths(options))


def load(options: Options, input_shapes: Sequence[Sequence[int]], seed: int) -> splits.LoadedDataset:
    """The rows; values are float32 and fill an input in its order of elements.

    Args:
        options: see Options
        input_shapes: the model's, each with its batch dimension
        seed: fixes the order of the samples

    Raises:
        ConfigurationError: the columns do not fill the inputs.
        LowerdeckError: a file is missing, or a row is wrong; the message lists all faults.
    """
    check(options, input_shapes)
    loaded = {name: _split(options, path, name, input_shapes, seed) for name, path in _paths(options).items()}
    labels = loaded["evaluation"].labels
    counted = None if labels is None else int(labels.max()) + 1
    return splits.LoadedDataset(
        num_classes=len(options.classes) or counted,
        calibration=loaded["calibration"],
        evaluation=loaded["evaluation"],
        training=loaded.get("training"),
        class_names=tuple(options.classes),
        preprocessing={"kind": "columns", "inputs": options.inputs, "mean": options.mean, "std": options.std},
    )


def _paths(options: Options) -> dict[str, Path]:
    named = {name: getattr(options, name) for name in ("calibration", "evaluation", "training")}
    return {name: Path(path) for name, path in named.items() if path is not None}


def _split(
    options: Options, path: Path, name: str, input_shapes: Sequence[Sequence[int]], seed: int
) -> splits.ArraySplit:
    further = [*filter(None, (options.label, options.group)), *options.values]
    rows = tables.rows(path, [*(column for columns in options.inputs for column in columns), *further])
    faults: list[str] = []
    stored = []
    for columns, shape in zip(options.inputs, input_shapes, strict=True):
        mean = np.array([options.mean.get(column, 0.0) for column in columns])
        std = np.array([options.std.get(column, 1.0) for column in columns])
        values = (tables.numbers(rows, columns, faults) - mean) / std
        stored.append(values.astype(np.float32).reshape(len(rows), *shape[1:]))
    labels = tables.labels(rows, options.label, options.classes, faults) if options.label else None
    groups = tables.labels(rows, options.group, (), faults) if options.group else None
    if labels and groups and not faults:
        faults.extend(array_checks.group_problems(np.array(labels), np.array(groups)))
    targets = tables.numbers(rows, options.values, faults).astype(np.float32) if options.values else None
    raise_faults(path, faults)
    return splits.ArraySplit(
        stored=tuple(stored),
        labels=None if labels is None else np.array(labels, dtype=np.int64),
        targets=targets,
        groups=None if groups is None else np.array(groups, dtype=np.int64),
        prepare=lambda arrays: arrays,
        order=splits.seeded_order(len(rows), seed),
        name=str(path),
    )
