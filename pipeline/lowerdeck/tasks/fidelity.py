"""Any model, without labels: whether the quantized and the delegated program answer as the float program does.

Its metrics, of every output, are measured for all tasks (evaluation.fidelity). This task adds the cosine to the float
program as what gates call a drop: `quantization_drop` is 1 minus the cosine of the quantized program's outputs, and
`delegation_drop` what delegation takes away from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lowerdeck.contracts.tasks import TaskMetric

TARGETS = ()


@dataclass(frozen=True, kw_only=True)
class Options:
    """There is nothing to choose."""


def metrics(options: Options) -> Sequence[TaskMetric]:
    """None of its own: evaluate measures the fidelity of every model."""
    return ()


def record(options: Options, outputs: Mapping[str, Any], target: Any, inputs: Sequence[Any] = ()) -> Mapping[str, Any]:
    """Nothing: outputs of any number, shape and dtype fit."""
    return {}


def measure(options: Options, records: Mapping[str, Any], weights: Any) -> Mapping[str, Any]:
    """Nothing."""
    return {}
