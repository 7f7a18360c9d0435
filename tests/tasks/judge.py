"""Judges arrays by a task, as evaluate does sample by sample."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lowerdeck import tasks
from lowerdeck.contracts.evaluation import OutputSpec
from lowerdeck.evaluation.records import ChosenTask, RecordsBuilder
from lowerdeck.evaluation.task_metrics import Measured, measure


def judged(
    task: str, outputs: Any, targets: Sequence[Any], inputs: Any = None, quantized: Any = None, **options: Any
) -> Measured:
    """The metrics of a float program that returns `outputs[i][None]` for sample i, and of a quantized one."""
    module = tasks.source(task)
    chosen = ChosenTask(task=module, options=module.Options(**options))
    builder = RecordsBuilder(chosen, (OutputSpec(name="output"),), len(targets))
    for row, target in enumerate(targets):
        values = {"float": [np.asarray(outputs[row])[None]]}
        values["quantized"] = [np.asarray((outputs if quantized is None else quantized)[row])[None]]
        builder.add(row, values, target, () if inputs is None else (np.asarray(inputs[row])[None],))
    return measure(chosen, builder.finish(), "no labels")
