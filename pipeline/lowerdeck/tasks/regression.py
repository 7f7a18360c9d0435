"""Numbers of any shape: values, keypoints, depth maps. The target is an array of the output's shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.contracts.tasks import TaskMetric
from lowerdeck.tasks import outputs as output_choice

TARGETS = ("array",)
MAX_VALUES = 4096
"""Most values of a sample that are kept one by one."""

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
    """Errors and targets, float64 [d]; with `flatten` their sums."""
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
            "sum_square": np.square(wanted).sum(),
        }
        return {name: np.array([value]) for name, value in sums.items()} | {"count": np.array([len(error)])}
    return {
        "absolute": np.abs(error),
        "square": np.square(error),
        "sum": wanted,
        "sum_square": np.square(wanted),
        "count": np.ones(len(error), dtype=np.int64),
    }


def measure(options: Options, records: Mapping[str, Any], weights: Floats) -> Mapping[str, Floats]:
    """See `metrics`; a column that is constant has R2 1 where it is met exactly, else 0."""
    count = weights @ records["count"]
    mse = (weights @ records["square"]) / count
    # Deviations are taken from the mean of all samples, where sums of squares cancel least.
    mean = records["sum"].sum(axis=0) / records["count"].sum(axis=0)
    shifted = records["sum"] - mean * records["count"]
    shifted_square = records["sum_square"] - 2 * mean * records["sum"] + mean**2 * records["count"]
    spread = (weights @ shifted_square) / count - np.square((weights @ shifted) / count)
    constant = spread <= 1e-12 * np.maximum(1.0, mean**2)
    r2 = np.where(constant, (mse == 0).astype(np.float64), 1 - mse / np.where(constant, 1.0, spread))
    return {
        "r2": r2.mean(axis=1),
        "mae": ((weights @ records["absolute"]) / count).mean(axis=1),
        "rmse": np.sqrt(mse).mean(axis=1),
    }
