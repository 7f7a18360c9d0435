"""What `lowerdeck repro` leaves out of DVC's output, on a small real project."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from lowerdeck.execution.dvc_state import QUIET_DVC
from tests.project import REPOSITORY, Project

PIPELINE = """stages:
  kept:
    cmd: cp source kept
    deps: [source]
    outs: [kept]
    frozen: true
  plain:
    cmd: cp kept plain && mkdir -p none && echo from the stage
    deps: [kept]
    outs: [plain, none]
  same:
    cmd: cp source same
    deps: [source]
    outs: [same]
"""
REPRO = ("-m", "lowerdeck.cli", "repro")


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What the first build, one after an edit, and a last one print."""
    root = tmp_path_factory.mktemp("quiet") / "project"
    root.mkdir()
    (root / "dvc.yaml").write_text(PIPELINE)
    for name in ("source", "kept"):
        (root / name).write_text("content")
    project = Project(root, {"PYTHONPATH": os.pathsep.join((str(REPOSITORY / "pipeline"), str(root)))})
    for command in (("git", "init", "--quiet"), (sys.executable, "-m", "dvc", "init", "--quiet")):
        assert project.run(*command).returncode == 0
    assert project.dvc("commit", "--force", "kept").returncode == 0
    found = []
    for _ in range(2):
        done = project.run(sys.executable, *REPRO)
        assert done.returncode == 0, done.stderr
        found.append(done.stdout + done.stderr)
        Path(root, "plain").unlink()
    loud = project.dvc("repro")
    return [*found, loud.stdout + loud.stderr]


def test_frozen_stages_empty_folders_and_pushing_are_left_out(outputs: list[str]) -> None:
    first, again, loud = outputs
    assert "is frozen" in loud  # what is left out is what DVC still says
    assert "didn't change, skipping" in loud
    for output in (first, again):
        assert not [word for word in ("frozen", "is empty", "dvc push", "Stage 'kept'") if word in output]


def test_the_rest_is_there(outputs: list[str]) -> None:
    first, again, _ = outputs
    assert "Running stage 'plain'" in first
    assert "from the stage" in first
    assert "Stage 'same' didn't change, skipping" in again


def test_errors_and_their_status_are_those_of_dvc(tmp_path: Path) -> None:
    project = Project(tmp_path, {"PYTHONPATH": str(REPOSITORY / "pipeline")})
    ours, theirs = (project.run(sys.executable, "-m", module, "repro") for module in (QUIET_DVC, "dvc"))
    assert ours.returncode == theirs.returncode != 0
    assert ours.stderr == theirs.stderr != ""


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", ["pipe", "link"])
def test_dependencies_without_end_are_refused_before_dvc_reads_them(tmp_path: Path, kind: str) -> None:
    (tmp_path / "dvc.yaml").write_text("stages: {one: {cmd: ls, deps: [data, none]}, other: {cmd: ls, deps: [source]}}")
    (tmp_path / "data/below").mkdir(parents=True)
    if kind == "pipe":
        os.mkfifo(tmp_path / "data/below/x")
    else:
        (tmp_path / "data/below/x").symlink_to("x")
    done = Project(tmp_path, {"PYTHONPATH": str(REPOSITORY / "pipeline")}).run(sys.executable, *REPRO)
    assert done.returncode == 1
    what = "a named pipe, and reading it may never end" if kind == "pipe" else "a link that leads to itself"
    assert done.stderr.startswith(f"lowerdeck repro: data/below/x is {what}; ")


def test_params_that_would_crash_the_parser_are_refused_before_dvc_reads_them(tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text("a: " + "[" * 100_000)
    done = Project(tmp_path, {"PYTHONPATH": str(REPOSITORY / "pipeline")}).run(sys.executable, *REPRO)
    assert done.returncode == 1
    assert done.stderr.strip() == "lowerdeck repro: params.yaml nests lists and mappings more than 64 levels deep"
