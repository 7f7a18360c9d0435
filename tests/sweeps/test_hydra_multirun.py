"""Points that are built by several processes at once: no work is done twice, and every point is recorded."""

from __future__ import annotations

import json
import logging
import re
import shutil
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lowerdeck.sweeps.hydra_multirun import multirun
from tests.project import Project, tail

QUICK = ["evaluation.max_samples=8", "evaluation.layer_samples=1", "quantization.num_calibration_samples=4"]
OPERATORS = "target.options.operators_not_to_delegate"
ONCE = {"export": 1, "calibrate": 1, "quantize": 1, "baseline": 1}
FOR_EACH_OF_TWO = {"partition": 2, "convert": 2, "firmware": 2, "evaluate": 2, "measure": 2, "track": 2}


@pytest.fixture(scope="module")
def project(make_project: Callable[[str], Project]) -> Project:
    return make_project("launchers")


def swept(project: Project, *arguments: str) -> tuple[Path, dict[str, Any], str]:
    """The sweep's folder, its summary and what was printed."""
    done = project.run(sys.executable, "-m", "lowerdeck.cli", "sweep", "-m", "target=xnnpack_cpu", *QUICK, *arguments)
    assert done.returncode == 0, tail(done.stdout + done.stderr)
    folder = max((project.root / "sweeps").glob("*/summary.json"), key=lambda path: path.stat().st_mtime).parent
    return folder, json.loads((folder / "summary.json").read_text()), done.stdout + done.stderr


def processes_of_points(folder: Path) -> set[int]:
    """Process ids of those that built points."""
    events = [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]
    return {event["process"] for event in events if event["event"] == "point begins"}


def metrics_of(folder: Path) -> dict[int, Any]:
    """What evaluate found, by point."""
    lines = [json.loads(line) for line in (folder / "points.jsonl").read_text().splitlines()]
    return {line["point"]: line["metrics"] for line in lines}


def runs_of(project: Project, sweep_id: str) -> Counter[str]:
    """`sweep.point` of the MLflow runs of a sweep."""
    with sqlite3.connect(project.root / "mlflow" / "mlflow.db") as database:
        query = (
            "SELECT point.value FROM tags AS id JOIN tags AS point ON point.run_uuid = id.run_uuid "
            "WHERE id.key = 'sweep.id' AND id.value = ? AND point.key = 'sweep.point'"
        )
        return Counter(value for (value,) in database.execute(query, (sweep_id,)))


@pytest.fixture(scope="module")
def by_two_workers(project: Project) -> tuple[Path, dict[str, Any], str]:
    """The first sweep of a new project: the workers also meet at MLflow's database, which neither has made yet."""
    return swept(project, f"{OPERATORS}=[],[aten::add]", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2")


@pytest.mark.slow
def test_two_joblib_workers_do_no_work_twice(
    by_two_workers: tuple[Path, dict[str, Any], str], project: Project
) -> None:
    folder, summary, _ = by_two_workers
    assert summary["points"] == {"built": 2}
    assert summary["stage_runs"] == ONCE | FOR_EACH_OF_TWO
    assert runs_of(project, summary["id"]) == {"0": 1, "1": 1}
    assert len(processes_of_points(folder)) == 2, "one worker built both points"


@pytest.mark.slow
def test_what_workers_made_is_reused_and_what_is_damaged_is_made_again(
    by_two_workers: tuple[Path, dict[str, Any], str], project: Project
) -> None:
    before = metrics_of(by_two_workers[0])
    for stored in (project.root / "sweeps" / "store" / "objects").rglob("*"):
        if stored.is_file() and b'"delegated_accuracy"' in stored.read_bytes():
            stored.chmod(0o644)
            stored.write_bytes(stored.read_bytes().replace(b'"delegated_accuracy"', b'"delegated_bccuracy"'))
    folder, alone, said = swept(project, f"{OPERATORS}=[],[aten::add]")
    assert alone["id"] == by_two_workers[1]["id"], "another launcher made another sweep of it"
    assert alone["stage_runs"] == {"evaluate": 2}
    assert re.search("build/evaluate/metrics.json of .* is missing or damaged", said)
    assert metrics_of(folder) == before


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.slow
def test_the_workers_of_a_killed_sweep_end(by_two_workers: tuple[Path, dict[str, Any], str], project: Project) -> None:
    before = set((project.root / "sweeps").glob("*/sweep.json"))
    joblib = ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2"]
    command = [sys.executable, "-m", "lowerdeck.cli", "sweep", "-m", "target=xnnpack_cpu", *QUICK, "build.seed=7,8"]
    running = project.start(*command, *joblib)
    workers: set[int] = set()
    deadline = time.monotonic() + 120
    while len(workers) < 2:
        assert running.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)
        for new in set((project.root / "sweeps").glob("*/sweep.json")) - before:
            if (new.parent / "journal.jsonl").is_file():
                workers = processes_of_points(new.parent)
    assert all(map(is_running, workers))
    running.kill()
    running.wait()
    deadline = time.monotonic() + 10
    while any(map(is_running, workers)):
        assert time.monotonic() < deadline, "workers outlive their sweep"
        time.sleep(0.1)


@pytest.mark.slow
def test_submitits_jobs_do_no_work_twice(project: Project) -> None:
    jobs = ["hydra/launcher=submitit_local", "hydra.launcher.timeout_min=10"]
    folder, summary, _ = swept(
        project, f"{OPERATORS}=[aten::linear],[aten::add,aten::linear]", "evaluation.layer_samples=2", *jobs
    )
    assert summary["points"] == {"built": 2}
    shared = {stage: count for stage, count in summary["stage_runs"].items() if stage in ONCE}
    assert all(count == 1 for count in shared.values())
    assert {stage: summary["stage_runs"][stage] for stage in FOR_EACH_OF_TWO} == FOR_EACH_OF_TWO
    assert runs_of(project, summary["id"]) == {"0": 1, "1": 1}
    assert len(processes_of_points(folder)) == 2


@pytest.mark.slow
def test_rays_workers_do_no_work_twice(project: Project) -> None:
    pytest.importorskip("hydra_plugins.hydra_ray_launcher", reason="pip install 'lowerdeck[ray]'")
    init = [f"+hydra.launcher.ray.init.{option}" for option in ("num_cpus=2", "include_dashboard=false")]
    _, summary, _ = swept(project, f"{OPERATORS}=[],[aten::add]", "build.seed=5", "hydra/launcher=ray", *init)
    assert summary["points"] == {"built": 2}
    assert all(summary["stage_runs"].get(stage, 1) == 1 for stage in ONCE)
    assert {stage: summary["stage_runs"][stage] for stage in FOR_EACH_OF_TWO} == FOR_EACH_OF_TWO


@pytest.mark.parametrize(("launcher", "said"), [("nomad", "nomad"), ("submitit_slurm", "the launcher failed: .*srun")])
def test_a_launcher_that_is_not_there_is_said(launcher: str, said: str, project: Project) -> None:
    if shutil.which("srun"):
        pytest.skip("this machine belongs to a Slurm cluster")
    done = project.run(
        sys.executable,
        "-m",
        "lowerdeck.cli",
        "sweep",
        "-m",
        "target=xnnpack_cpu",
        *QUICK,
        f"hydra/launcher={launcher}",
    )
    assert done.returncode == 1
    assert re.search(said, done.stderr)
    assert "Traceback" not in done.stderr


def test_a_process_logs_as_before_after_it_ran_points(tmp_path: Path) -> None:
    """Reasons for nodes that are not delegated come from a library's log records."""
    logger = logging.getLogger("a.library")
    handlers = list(logging.getLogger().handlers)
    (tmp_path / "config.yaml").write_text("a: 0\n")
    multirun(tmp_path, lambda config: None, ["a=1,2"])
    assert not logger.disabled
    assert logging.getLogger().handlers == handlers
