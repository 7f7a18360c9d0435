"""Searches with Optuna's sweeper: a seed gives the same points, and what cannot be built is a failed trial."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lowerdeck.contracts.errors import ConfigurationError, LowerdeckError
from lowerdeck.sweeps import arguments, search
from lowerdeck.sweeps.folder import PointRecord, Sweep
from tests.project import Project, tail

QUICK = ["evaluation.max_samples=8", "evaluation.layer_samples=1", "quantization.num_calibration_samples=4"]
OBJECTIVES = ["delegated_accuracy", "undelegated_macs"]
SPACE = [
    "target=xnnpack_cpu",
    "quantization=choice(int8,int16x8)",  # XNNPACK lacks the second
    "target.options.operators_not_to_delegate=choice([],[aten::add],[aten::linear])",
]
SAMPLER = [
    "hydra/sweeper=optuna",
    "hydra/sweeper/sampler=nsgaii",
    "hydra.sweeper.sampler.seed=3",
    "hydra.sweeper.n_trials=5",
    "hydra.sweeper.n_jobs=1",
    "hydra.sweeper.direction=[maximize,minimize]",
    f"sweep.objectives=[{','.join(OBJECTIVES)}]",
]


@pytest.fixture(scope="module")
def project(make_project: Callable[[str], Project]) -> Project:
    return make_project("search")


def searched(project: Project, *overrides: str) -> subprocess.CompletedProcess[str]:
    return project.run(sys.executable, "-m", "lowerdeck.cli", "sweep", "-m", *overrides)


def points_of(project: Project) -> list[dict[str, Any]]:
    """Records of the newest sweep's newest start."""
    folder = max((project.root / "sweeps").glob("*/summary.json"), key=lambda path: path.stat().st_mtime).parent
    lines = [json.loads(line) for line in (folder / "points.jsonl").read_text().splitlines()]
    return [line for line in lines if line["session"] == lines[-1]["session"]]


@pytest.mark.slow
def test_a_search_proposes_the_same_points_again_and_shares_them(project: Project) -> None:
    first = searched(project, *SPACE, *SAMPLER, *QUICK)
    assert first.returncode == 0, tail(first.stdout + first.stderr)
    proposed = points_of(project)
    again = searched(project, *SPACE, *SAMPLER, *QUICK)
    assert again.returncode == 0, tail(again.stdout + again.stderr)
    repeated = points_of(project)

    assert len(proposed) == 5
    assert [point["overrides"] for point in repeated] == [point["overrides"] for point in proposed]
    statuses = {("quantization=int8" in point["overrides"], point["status"]) for point in proposed}
    assert statuses == {(True, "built"), (False, "skipped")}, "another seed is needed"
    assert {how for point in repeated for how in point["stages"].values()} == {"shared"}

    best = [line for line in first.stdout.splitlines() if line.startswith("best: ")]
    assert best == [line for line in again.stdout.splitlines() if line.startswith("best: ")]
    metrics = [tuple(point["metrics"][name] for name in OBJECTIVES) for point in proposed if point["metrics"]]
    assert len(set(metrics)) > 1, "there was nothing to choose from"
    unbeaten = {one for one in metrics if not any(_dominates(other, one) for other in metrics)}
    assert {tuple(float(part.rsplit(" ", 1)[1]) for part in line.split(", ")) for line in best} == {
        tuple(float(f"{value:.6g}") for value in one) for one in unbeaten
    }


def _dominates(one: tuple[float, float], other: tuple[float, float]) -> bool:
    return one != other and one[0] >= other[0] and one[1] <= other[1]


def a_sweep(searches: bool, objectives: list[str]) -> Sweep:
    return Sweep(
        id="0", name="", typed=[], arguments=[], swept=[], searches=searches, base={}, objectives=objectives, store="",
        versions={},
    )  # fmt: skip


def test_a_search_without_objectives_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"sweep\.objectives is missing"):
        search.check_has_objectives(a_sweep(searches=True, objectives=[]))
    search.check_has_objectives(a_sweep(searches=True, objectives=["delegated_accuracy"]))
    search.check_has_objectives(a_sweep(searches=False, objectives=[]))


def test_an_objective_that_some_points_lack_is_no_mistake() -> None:
    records = [
        PointRecord(point=number, overrides=[], status="built", metrics=metrics)
        for number, metrics in enumerate(
            [{"delegated_accuracy": 1.0}, {"delegated_accuracy": 1.0, "estimated_ms": 2.0}]
        )
    ]
    search.check_objectives_measured(a_sweep(searches=True, objectives=["delegated_accuracy", "estimated_ms"]), records)
    with pytest.raises(LowerdeckError, match="estimated_ns"):
        search.check_objectives_measured(a_sweep(searches=True, objectives=["estimated_ns"]), records)


def test_objectives_are_typed_or_of_the_named_sweep() -> None:
    named = {"sweep": {"objectives": ["delegated_accuracy"]}}
    assert arguments.objectives([], {}) == []
    assert arguments.objectives(["target=a,b"], named) == ["delegated_accuracy"]
    assert arguments.objectives(["sweep.objectives=[total_macs,partitions]"], named) == ["total_macs", "partitions"]
    assert arguments.to_hydra_overrides(["sweep.objectives=[total_macs]", "target=a,b"]) == ["target=a,b"]
    assert arguments.objectives(["sweep.objectives=null"], named) == []
    for wrong in ("sweep.objectives=a,b", "sweep.objectives=a", "sweep.objectives=[1]"):
        with pytest.raises(ConfigurationError, match="a list of metrics"):
            arguments.objectives([wrong], named)


def test_best_points_are_read_for_one_objective_and_for_several(tmp_path: Path) -> None:
    path = tmp_path / search.RESULTS
    path.parent.mkdir()
    assert search.best(tmp_path, ["a"]) == []
    path.write_text("{name: optuna, best_params: {'++overrides.build.seed': 3, target: x}, best_value: 0.5}")
    (single,) = search.best(tmp_path, ["a"])
    assert single == search.Best(overrides=["build.seed=3", "target=x"], metrics={"a": 0.5})
    path.write_text(
        "{name: optuna, solutions: [{params: {target: x}, values: [1, 2]}, {params: {target: x}, values: [1, 2]}]}"
    )
    (twice,) = search.best(tmp_path, ["a", "b"])
    assert twice.metrics == {"a": 1, "b": 2}
