"""Chooses the output that a task judges, and checks its shape: shared by tasks."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.registry import components

Array = npt.NDArray[Any]


def chosen_name(names: Collection[str], name: str | None, key: str = "task.options.output") -> str:
    """The output `name`, or the first one; `key` names the option in messages.

    Raises:
        LowerdeckError: there is no such output.
    """
    if name is not None and name not in names:
        raise LowerdeckError(
            f"{key} is {name!r}, and the model returns {', '.join(names)}.{components.did_you_mean(name, names)}"
        )
    return name if name is not None else next(iter(names))


def chosen(outputs: Mapping[str, Array], name: str | None, key: str = "task.options.output") -> Array:
    """The output `name`, or the first one, without its batch dimension; `key` names the option in messages.

    Raises:
        LowerdeckError: there is no such output, or it has no batch dimension of 1.
    """
    called = chosen_name(outputs, name, key)
    array = outputs[called]
    if array.ndim == 0 or len(array) != 1:
        raise LowerdeckError(
            f"the output {called} has shape {list(array.shape)}; this task needs a batch dimension of 1 before the "
            f"values of the sample. Choose another output with {key}, or task: fidelity"
        )
    return np.asarray(array[0])


def scores(outputs: Mapping[str, Array], name: str | None, task: str) -> npt.NDArray[np.float64]:
    """The scores in the output `name`, float64 [c].

    Raises:
        LowerdeckError: the output is no row of scores.
    """
    values = chosen(outputs, name)
    if values.ndim != 1 or not len(values):
        raise LowerdeckError(
            f"the model returns shape {[1, *values.shape]} where {task} needs scores [1, classes]; choose the output "
            f"with task.options.output (there are: {', '.join(outputs)}), or another task, e.g. task: fidelity"
        )
    return values.astype(np.float64)


def many_scores(outputs: Mapping[str, Array], name: str | None) -> npt.NDArray[np.float64] | None:
    """The scores of several samples in the output `name`, float64 [b x c]; None where `scores` refuses them.

    Args:
        outputs: By name, each [b x ...] with the batch dimension of 1 of each sample.
        name: See `chosen`.
    """
    values = outputs.get(next(iter(outputs)) if name is None else name)
    if values is None or values.ndim != 3 or values.shape[1] != 1 or not values.shape[2]:
        return None
    return values[:, 0].astype(np.float64)


def array_target(target: Any, task: str) -> Array:
    """The target as an array.

    Raises:
        LowerdeckError: the dataset has class indices, or several arrays.
    """
    if isinstance(target, np.ndarray):
        return target
    kind = f"the arrays {', '.join(map(str, target))}" if isinstance(target, Mapping) else type(target).__name__
    raise LowerdeckError(
        f"{task} needs an array as target, and the dataset has {kind}; store `targets` [n x ...] (dataset arrays), or "
        "choose another task"
    )


def class_index(target: Any, num_classes: int, task: str) -> int:
    """The target as a class index below `num_classes`.

    Raises:
        LowerdeckError: it is something else.
    """
    if isinstance(target, Mapping) and {"label", "group"} == set(target):
        raise LowerdeckError(
            f"{task} judges every sample by itself, and the dataset names the recording of each; remove what names it "
            "(`groups` in files of arrays, `dataset.options.group` of a table), or choose `task: anomaly`"
        )
    if not isinstance(target, (int, np.integer)) or isinstance(target, bool):
        kind = f"an array {list(np.shape(target))}" if np.ndim(target) else type(target).__name__
        raise LowerdeckError(f"{task} needs a class index as target, and the dataset has {kind}")
    if not 0 <= target < num_classes:
        raise LowerdeckError(
            f"a sample has the class {target} and the model {num_classes} outputs; choose a dataset that fits the "
            "model, or set the model's number of classes"
        )
    return int(target)


def ratio(numerator: Any, denominator: Any) -> npt.NDArray[np.float64]:
    """`numerator / denominator`, NaN where the denominator is zero."""
    with np.errstate(divide="ignore", invalid="ignore"):
        result: npt.NDArray[np.float64] = np.where(denominator == 0, np.nan, np.divide(numerator, denominator))
    return result
