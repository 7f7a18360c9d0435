"""lowerdeck.execution.dvc_command, on a small real project of DVC."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from lowerdeck.execution.dvc_command import MODULE
from tests.project import REPOSITORY, Project

PIPELINE = """stages:
  made_before:
    cmd: echo content > first
    outs: [first]
    frozen: true
  second:
    cmd: mkdir second
    deps: [first]
    outs: [second]
"""
NOISE = ("is frozen", "'second' is empty", "dvc push")


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """Two stages, the first of which is frozen; the second makes an empty folder."""
    project = Project(tmp_path, {"PYTHONPATH": str(REPOSITORY / "pipeline")})
    (tmp_path / "dvc.yaml").write_text(PIPELINE)
    (tmp_path / "first").write_text("content")
    for command in (("git", "init", "--quiet"), (sys.executable, "-m", "dvc", "init", "--quiet")):
        assert project.run(*command).returncode == 0
    assert project.dvc("commit", "--force", "made_before").returncode == 0
    return project


def said(project: Project, module: str, *arguments: str) -> str:
    done = project.run(sys.executable, "-m", module, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_only_what_says_nothing_is_left_out(project: Project) -> None:
    quiet = said(project, MODULE, "repro")
    assert not [text for text in NOISE if text in quiet]
    assert "Running stage 'second'" in quiet
    assert "git add" in quiet
    (project.root / "second").rmdir()
    (project.root / "dvc.lock").unlink()
    plain = said(project, "dvc", "repro", "--force", "second")
    assert [text for text in NOISE if text in plain] == list(NOISE), "DVC says it in other words now"


def test_errors_and_their_status_are_those_of_dvc(project: Project) -> None:
    os.truncate(project.root / "dvc.yaml", 20)
    ours, theirs = (project.run(sys.executable, "-m", module, "repro") for module in (MODULE, "dvc"))
    assert ours.returncode == theirs.returncode != 0
    assert ours.stderr == theirs.stderr != ""
