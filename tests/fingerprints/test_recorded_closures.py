"""Stages executed under a recorder of project files: no file runs that the closure of its stage lacks.

tests/stages/test_repro.py does the same for XNNPACK, with the build that it makes anyway.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from lowerdeck.fingerprints.closures import Sources, stage_closures
from tests.fingerprints import recorder
from tests.project import Project


@pytest.mark.slow
@pytest.mark.parametrize("target", ["neutron_imxrt700", "ethos_u55_128"])
def test_no_file_runs_that_the_closure_lacks(
    make_project: Callable[[str], Project], tmp_path: Path, target: str
) -> None:
    project = make_project(f"recorded_{target}")
    project.edit_params(target=target)
    variables = {**project.environment, **recorder.environment(tmp_path, project)}
    done = dataclasses.replace(project, environment=variables).dvc("repro")
    assert done.returncode == 0, done.stderr
    closures = stage_closures(project.config(), Sources.of_workspace(project.root))
    recorder.assert_closures_have_all_that_ran(tmp_path, project, closures)
