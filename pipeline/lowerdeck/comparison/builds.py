"""One build as it is compared, from an MLflow run or from a git revision."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from lowerdeck.evaluation.intervals import HIGH, LOW


class State(StrEnum):
    """What became of a build."""

    BUILT = "built"
    GATED = "gates failed"
    RUNNING = "not finished"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, kw_only=True)
class ComparedBuild:
    """A build with all that it is judged by."""

    label: str
    """What it is called in tables, different from all others: the beginning of a run's id, or a revision."""
    name: str
    state: State = State.BUILT
    reason: str = ""
    """Why it failed or was skipped, or which gates it does not keep."""
    params: Mapping[str, str] = field(default_factory=dict)
    """The configuration, flat: dotted key -> value as text."""
    overridden: frozenset[str] = frozenset()
    """Keys of parameters that were given for this build, where that is known (the overrides of a sweep's point)."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """As metrics.json names them; nothing that is no finite number."""
    texts: Mapping[str, str] = field(default_factory=dict)
    """What stands in place of a metric, e.g. why it was not measured."""
    compiler: str = ""
    """Who made the estimates: the converter flavor with its version."""
    samples: str = ""
    """Which evaluation samples were used: equal where and only where they were the same."""
    run_id: str | None = None
    links: Mapping[str, str] = field(default_factory=dict)
    """What it left behind: name -> address."""

    @property
    def has_metrics(self) -> bool:
        """Whether there is anything to compare."""
        return bool(self.metrics)

    @property
    def is_eligible(self) -> bool:
        """Whether it keeps its gates and is finished: others are shown, and never the best of anything."""
        return self.state is State.BUILT

    def interval(self, metric: str) -> tuple[float, float] | None:
        """The ends of a metric's 95 % interval, None where it has none."""
        low, high = self.metrics.get(metric + LOW), self.metrics.get(metric + HIGH)
        return None if low is None or high is None else (low, high)


def finite_metrics(metrics: Mapping[str, object]) -> dict[str, float]:
    """Those of `metrics` that are finite numbers; True and False are none."""
    numbers = {
        key: float(value)
        for key, value in metrics.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    }
    return {key: value for key, value in numbers.items() if math.isfinite(value)}
