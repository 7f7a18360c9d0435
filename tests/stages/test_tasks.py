"""Every task from export to evaluate on a target of every backend, each from one params.yaml of at most 25 lines."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from mlflow.tracking import MlflowClient

from lowerdeck import tasks
from lowerdeck.evaluation.metric_names import may_be_measured
from tests.project import Project, tail
from tests.stages import task_examples

TARGETS = ("xnnpack_cpu", "ethos_u55_128", "neutron_imxrt700", "cortex_m55")


@pytest.fixture(scope="module")
def workspace(make_project: Callable[[str], Project]) -> Project:
    return make_project("tasks")


def points_of(project: Project) -> list[dict[str, Any]]:
    """Records of the newest sweep."""
    folder = max((project.root / "sweeps").glob("*/summary.json"), key=lambda path: path.stat().st_mtime).parent
    return [json.loads(line) for line in (folder / "points.jsonl").read_text().splitlines()]


def metrics_of(params: str) -> list[str]:
    """Names of the metrics of the task that a params.yaml chooses."""
    values = yaml.safe_load(params)
    task: Any = tasks.source(values["task"])
    options = values["overrides"].get("task", {}).get("options", {})
    return [metric.name for metric in task.metrics(task.Options(**options))]


@pytest.mark.slow
@pytest.mark.parametrize("example", task_examples.EXAMPLES)
def test_a_task_is_built_evaluated_and_gated_on_every_backend(workspace: Project, example: str) -> None:
    task_examples.write(workspace.root, example)
    text = task_examples.params(example, TARGETS[0])
    assert len(text.splitlines()) <= 25
    (workspace.root / "params.yaml").write_text(text)
    done = workspace.run(
        sys.executable, "-m", "lowerdeck.cli", "sweep", "-m", f"target={','.join(TARGETS)}", timeout_s=1800
    )
    assert done.returncode == 0, tail(done.stdout + done.stderr)
    points = points_of(workspace)
    assert {point["status"] for point in points} == {"built"}
    metric = task_examples.EXAMPLES[example][-1].partition(":")[0]
    for point in points:
        found = point["metrics"]
        numbers = {name for name, value in found.items() if isinstance(value, (int, float))}
        assert {name for name in numbers if not may_be_measured(name, metrics_of(text))} == set()
        for program in ("quantized", "delegated"):
            name = f"{program}_{metric}"
            assert found[f"{name}_low"] <= found[name] <= found[f"{name}_high"], point["overrides"]
        assert math.isfinite(found["delegation_drop"])
        assert found["num_samples"] == task_examples.NUM["evaluation"]
        if metric in ("miou", "map_50"):
            assert "classes.green.delegated_iou" in found or "classes.green.delegated_average_precision" in found


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_search_ledger_and_promotion_know_the_metrics_of_a_task(make_project: Callable[[str], Project]) -> None:
    pytest.importorskip("optuna", reason="pip install 'lowerdeck[optuna]'")
    project = make_project("recorded_task")
    own = dict.fromkeys(("GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_NAME", "GIT_COMMITTER_EMAIL"), "own")

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        return project.run(*command, timeout_s=900, **own)

    def lowerdeck(*arguments: str, fails: bool = False) -> str:
        done = run(sys.executable, "-m", "lowerdeck.cli", *arguments)
        assert (done.returncode != 0) == fails, tail(done.stdout + done.stderr)
        return done.stdout

    task_examples.write(project.root, "segmentation")
    params = project.root / "params.yaml"
    params.write_text(task_examples.params("segmentation", "xnnpack_cpu"))
    objectives = ("delegated_miou", "program_bytes")
    searched = lowerdeck(
        *("sweep", "-m", "hydra/sweeper=optuna", "hydra/sweeper/sampler=nsgaii", "hydra.sweeper.sampler.seed=1"),
        *("hydra.sweeper.n_trials=4", "hydra.sweeper.n_jobs=1", "hydra.sweeper.direction=[maximize,minimize]"),
        *(f"sweep.objectives=[{','.join(objectives)}]", "quantization=choice(int8,float32)"),
    )
    assert "best: " in searched
    by_scheme = {point["overrides"][0]: point for point in points_of(project)}
    assert set(by_scheme) == {"quantization=int8", "quantization=float32"}, "another seed is needed"
    chosen = by_scheme["quantization=float32"]

    client = MlflowClient(f"sqlite:///{project.root}/mlflow/mlflow.db")
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    (found,) = (
        found.info.run_id
        for found in client.search_runs(experiments)
        if found.data.params.get("quantization.name") == "float32"
    )
    lowerdeck("ledger", "update", found)
    ledger = project.root / "docs" / "ledger" / "my_segmentation.yaml"
    values = yaml.safe_load(ledger.read_text())
    (entry,) = values["entries"].values()
    assert entry["metrics"]["delegated_miou"] == pytest.approx(chosen["metrics"]["delegated_miou"], abs=1e-5)
    for command in (("git", "add", "--all"), ("git", "commit", "--quiet", "--message", "ledger")):
        assert run(*command).returncode == 0
    entry["metrics"]["delegated_miou"] -= 0.1
    ledger.write_text(yaml.safe_dump(values, sort_keys=False))
    assert "delegated_miou" in lowerdeck("ledger", "diff", "HEAD", fails=True)
    assert run("git", "checkout", "--quiet", "HEAD", "--", ".").returncode == 0

    promoted = lowerdeck("promote", found)
    assert f"has the SHA-256 of the run, {chosen['program_sha256']}" in promoted
    assert yaml.safe_load(params.read_text())["quantization"] == "float32"
