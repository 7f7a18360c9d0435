"""Objectives of a search, and the best points that Optuna's sweeper found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lowerdeck.contracts.errors import ConfigurationError, LowerdeckError
from lowerdeck.registry import components
from lowerdeck.sweeps.arguments import OBJECTIVES, to_user_overrides
from lowerdeck.sweeps.folder import PointRecord, Sweep

RESULTS = Path("runs") / "optimization_results.yaml"
"""Results of Optuna's sweeper, relative to the folder of Hydra's configuration."""


@dataclass(frozen=True, kw_only=True)
class Best:
    """A Pareto-optimal point."""

    overrides: list[str]
    """Overrides as users type them."""
    metrics: dict[str, float]
    """Its objectives."""


def best(hydra_folder: Path, objectives: Sequence[str]) -> list[Best]:
    """The best points of a search, each once; empty if the sweeper left no results."""
    import yaml

    path = hydra_folder / RESULTS
    if not path.is_file():
        return []
    results = yaml.safe_load(path.read_text(encoding="utf-8"))
    solutions = results.get("solutions")
    if solutions is None:
        solutions = [{"params": results["best_params"], "values": [results["best_value"]]}]
    found = []
    for solution in solutions:
        overrides = to_user_overrides([f"{key}={value}" for key, value in solution["params"].items()])
        point = Best(overrides=overrides, metrics=dict(zip(objectives, solution["values"], strict=True)))
        if point not in found:
            found.append(point)
    return found


def check_has_objectives(sweep: Sweep) -> None:
    """Reject a search without objectives.

    Raises:
        ConfigurationError: the sweeper searches, but no metric is chosen as an objective.
    """
    if sweep.searches and not sweep.objectives:
        raise ConfigurationError(
            f"{OBJECTIVES} is missing: a search needs the metrics of build/evaluate/metrics.json that it optimizes, "
            f"e.g. '{OBJECTIVES}=[delegated_accuracy,undelegated_macs]' 'hydra.sweeper.direction=[maximize,minimize]'"
        )


def has_metrics(sweep: Sweep, records: Sequence[PointRecord], session: str) -> bool:
    """Whether a point that was built in this session has all objectives."""
    built = (record for record in records if record.session == session and record.status == "built")
    return any(set(sweep.objectives) <= record.metrics.keys() for record in built)


def check_objectives_measured(sweep: Sweep, records: Sequence[PointRecord]) -> None:
    """Check that every objective is a metric of some point.

    Raises:
        LowerdeckError: one is not; suggests metrics with similar names.
    """
    built = [record.metrics for record in records if record.status == "built"]
    known = sorted({name for metrics in built for name in metrics if isinstance(metrics[name], (int, float))})
    missing = [name for name in sweep.objectives if name not in known]
    if built and missing:
        raise LowerdeckError(
            f"{OBJECTIVES}: no point has the metric {missing[0]!r}, so the search had nothing to optimize.\n"
            f"Allowed: {', '.join(known)}.{components.did_you_mean(missing[0], known)}"
        )
