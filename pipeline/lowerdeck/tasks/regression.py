"""Numbers of any shape: values, keypoints, depth maps. The target is an array of the output's shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.contracts.pictures import Histogram
from lowerdeck.contracts.tasks import TaskMetric
from lowerdeck.tasks import outputs as output_choice

TARGETS = ("array",)
MAX_VALUES = 4096
"""Most values of a sample that are kept one by one."""
_COLUMNS = 64
"""Columns that are measured at a time."""
_CONSTANT = 1e-12
"""A column whose standard deviation is less, relative to its mean, is constant: float64 rounds at 1e-16."""
_SHOWN = 200_000
"""About as many errors are in the histogram; of more, those of samples at even distances."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Options:
    """Fields of `task.options`."""

    output: str | None = None
    """Name of the output with the values; null for the first one."""
    flatten: bool = False
    """Whether all values of all samples are one column, as for images. Otherwise each position in the output is a
    column of its own, and RMSE and R2 are the means of theirs, as scikit-learn computes them."""


def metrics(options: Options) -> Sequence[TaskMetric]:
    """R2, and MAE and RMSE in units of the output."""
    return (
        TaskMetric(name="r2"),
        TaskMetric(name="mae", better="min", is_share=False),
        TaskMetric(name="rmse", better="min", is_share=False),
    )


def record(options: Options, outputs: Mapping[str, Any], target: Any, inputs: Sequence[Any] = ()) -> Mapping[str, Any]:
    """Errors and targets, float64 [d]; with `flatten` sums over them, [1] each."""
    values = output_choice.chosen(outputs, options.output).astype(np.float64)
    wanted = output_choice.array_target(target, "regression").astype(np.float64)
    if wanted.size != values.size or np.squeeze(wanted).shape != np.squeeze(values).shape:
        raise LowerdeckError(
            f"the model returns {list(values.shape)} for a sample and its target has shape {list(wanted.shape)}; store "
            "targets of the output's shape, or choose another output with task.options.output"
        )
    error, wanted = (values.reshape(wanted.shape) - wanted).ravel(), wanted.ravel()
    if not options.flatten and len(error) > MAX_VALUES:
        raise LowerdeckError(
            f"a sample has {len(error):,} values and regression keeps {MAX_VALUES:,} columns at most; set "
            "task.options.flatten: true to treat all values as one column"
        )
    if options.flatten:
        sums = {
            "absolute": np.abs(error).sum(),
            "square": np.square(error).sum(),
            "sum": wanted.sum(),
            "deviation": np.square(wanted - wanted.mean()).sum() if wanted.size else 0.0,
        }
        return {name: np.array([value]) for name, value in sums.items()} | {"count": np.array([len(error)])}
    return {"error": error, "target": wanted}


def measure(options: Options, records: Mapping[str, Any], weights: Floats) -> Mapping[str, Floats]:
    """See `metrics`; a column that is constant has R2 1 where it is met exactly, else 0."""
    if options.flatten:
        blocks = [_measured(records, weights)]
    else:
        num_columns = records["error"].shape[1]
        # Few columns at a time: records of many samples are mapped from a file.
        ranges = (slice(start, start + _COLUMNS) for start in range(0, num_columns, _COLUMNS))
        blocks = [_measured(_sums(records, columns), weights) for columns in ranges]
    return {name: np.concatenate([block[name] for block in blocks], axis=1).mean(axis=1) for name in blocks[0]}


def pictures(options: Options, records: Mapping[str, Any]) -> Sequence[Histogram]:
    """The errors of all values or, with `flatten`, the mean absolute error of each sample."""
    if options.flatten:
        values = (records["absolute"] / records["count"])[:, 0]
        return [Histogram(label="mean absolute error of a sample", groups={"samples": values})]
    error = records["error"]
    some = np.unique(np.linspace(0, len(error) - 1, max(1, _SHOWN // error.shape[1])).astype(int))
    return [Histogram(label="error", groups={"values": np.asarray(error[some]).ravel()})]


def _sums(records: Mapping[str, Any], columns: slice) -> dict[str, Floats]:
    error, wanted = np.asarray(records["error"][:, columns]), np.asarray(records["target"][:, columns])
    sums = {"absolute": np.abs(error), "square": np.square(error), "sum": wanted, "deviation": np.zeros_like(wanted)}
    return {**sums, "count": np.ones((len(error), 1))}


def _measured(records: Mapping[str, Any], weights: Floats) -> dict[str, Floats]:
    """Metrics of every column, float64 [b x columns] each."""
    count = weights @ records["count"]
    mse = (weights @ records["square"]) / count
    # From the mean of all samples, so that nothing cancels where the targets are large and vary little.
    mean = records["sum"].sum(axis=0) / records["count"].sum(axis=0)
    shifted = records["sum"] - mean * records["count"]
    deviation = records["deviation"] + np.square(shifted) / records["count"]
    spread = (weights @ deviation) / count - np.square((weights @ shifted) / count)
    constant = spread <= (_CONSTANT * mean) ** 2
    r2 = np.where(constant, (mse == 0).astype(np.float64), 1 - mse / np.where(constant, 1.0, spread))
    return {"r2": r2, "mae": (weights @ records["absolute"]) / count, "rmse": np.sqrt(mse)}
