"""One build of a comparison, from an MLflow run or a git revision."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property

from lowerdeck.evaluation.intervals import HIGH, LOW
from lowerdeck.evaluation.metric_names import DESCRIPTIONS, DROPS, PRIMARY

RAM_UNKNOWN = "ram_unknown"
"""Key of a build's texts: the parts of its RAM that nobody knows."""


class State(StrEnum):
    """Outcome of a build."""

    BUILT = "built"
    GATED = "gates failed"
    DEFECTIVE = "do not ship"
    RUNNING = "not finished"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, kw_only=True)
class ComparedBuild:
    """A build with everything that is compared."""

    label: str
    """Unique name in tables: the start of a run's id, or a revision."""
    name: str
    state: State = State.BUILT
    reason: str = ""
    """Why it failed or was skipped, which gates it misses, or which defects it has."""
    params: Mapping[str, str] = field(default_factory=dict)
    """The configuration, flat: dotted key -> value as text."""
    overridden: frozenset[str] = frozenset()
    """Keys of the parameters that were set for this build alone, if known: the overrides of a sweep's point."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Finite metrics by their names in metrics.json."""
    texts: Mapping[str, str] = field(default_factory=dict)
    """Texts in place of metrics, e.g. why one was not measured."""
    compiler: str = ""
    """Source of the estimates: the converter flavor with its version."""
    samples: str = ""
    """Identifies the evaluation samples."""
    device: str = ""
    """The device that executed the program, with its runtime; empty without one."""
    program_sha256: str = ""
    """SHA-256 of the program and the data files that it reads; empty if it was not recorded."""
    identical: tuple[ComparedBuild, ...] = ()
    """Builds of the same bytes by other configurations, which have no row of their own."""
    run_id: str | None = None
    links: Mapping[str, str] = field(default_factory=dict)
    """Name of a file or page of the build -> address."""

    @cached_property
    def described(self) -> Mapping[str, str]:
        """Metric -> what the task says of it: its values for all programs, and their drops."""
        found: dict[str, str] = {}
        for key, text in self.texts.items():
            if key.startswith(DESCRIPTIONS):
                name = key.removeprefix(DESCRIPTIONS)
                found |= {f"{program}_{name}": text for program in ("float", "quantized", "delegated")}
                lower = text.replace("max", "min")
                found |= {f"{drop}_{name}": lower for drop, _, _ in DROPS}
                if name == self.texts.get(PRIMARY):
                    found |= {drop: lower for drop, _, _ in DROPS}
        return found

    @property
    def has_metrics(self) -> bool:
        """Whether the build can be compared."""
        return bool(self.metrics)

    @property
    def target(self) -> str:
        """The target's name; empty if unknown."""
        return self.params.get("target.name", "")

    @property
    def is_eligible(self) -> bool:
        """Whether it is finished, passes its gates and has no defects; other builds are shown but never marked as the
        best."""
        return self.state is State.BUILT

    def is_lower_bound(self, metric: str) -> bool:
        """Whether the value of a metric is known in part only."""
        return metric == "ram_bytes" and RAM_UNKNOWN in self.texts

    def interval(self, metric: str) -> tuple[float, float] | None:
        """The ends of a metric's 95 % interval; None if it has no interval."""
        low, high = self.metrics.get(metric + LOW), self.metrics.get(metric + HIGH)
        return None if low is None or high is None else (low, high)


def finite_metrics(metrics: Mapping[str, object]) -> dict[str, float]:
    """The finite numbers among `metrics`, without booleans."""
    return {
        key: float(value)
        for key, value in metrics.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    }
