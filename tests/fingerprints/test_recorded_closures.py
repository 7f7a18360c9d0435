"""Stages executed under a recorder of project files: no file runs that the closure of its stage lacks."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from lowerdeck.fingerprints.closures import Sources, stage_closures
from tests.project import Project

STAGES = ("export", "calibrate", "quantize", "partition", "convert", "firmware", "baseline", "evaluate", "track")
# Python imports this at the start of every process: child processes of stages, and preload servers, whose forks have
# the environment of the stage that they run.
RECORDER = """
import os, sys

def record(event, arguments, root=os.environ["RECORDED_ROOT"]):
    if event not in ("exec", "cpython.run_file"):
        return
    name = getattr(arguments[0], "co_filename", arguments[0])
    if isinstance(name, str) and name.startswith(root):
        descriptor = os.open(os.environ["RECORDED_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.write(descriptor, (name + "\\n").encode())
        os.close(descriptor)

sys.addaudithook(record)
"""


@pytest.mark.parametrize(
    "target",
    [
        "neutron_imxrt700",
        pytest.param("ethos_u55_128", marks=pytest.mark.slow),
        pytest.param("xnnpack_cpu", marks=pytest.mark.slow),
    ],
)
def test_no_file_runs_that_the_closure_lacks(
    make_project: Callable[[str], Project], tmp_path: Path, target: str
) -> None:
    project = make_project(f"recorded_{target}")
    project.edit_params(target=target)
    (tmp_path / "sitecustomize.py").write_text(RECORDER)

    def recorded(stage: str) -> set[Path]:
        log = tmp_path / f"{stage}.log"
        done = project.stage(
            stage,
            PYTHONPATH=os.pathsep.join((str(tmp_path), str(project.root / "pipeline"))),
            RECORDED_ROOT=str(project.root),
            RECORDED_LOG=str(log),
        )
        assert done.returncode == 0, done.stderr
        return {Path(line).relative_to(project.root) for line in log.read_text().splitlines()}

    recorded("compose")  # starts the preload server that the others find
    closures = stage_closures(project.config(), Sources.of_workspace(project.root))
    for stage in STAGES:
        ran, reached = recorded(stage), {file.relative_to(project.root) for file in closures[stage].values()}
        assert Path("stages") / f"{stage}.py" in ran
        assert Path("pipeline/lowerdeck/artifacts/paths.py") in ran
        assert ran - reached == set(), stage
