"""A sweep over targets whose extra is not installed: refused, with the command, before anything is built."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.project import Project, copy_sources

SWEEP = """
import sys
from lowerdeck.contracts import backends
from lowerdeck.cli.main import main

class Finder:
    @staticmethod
    def find_spec(name):
        return None if name in {missing!r} else "found"

backends.PathFinder = Finder
sys.exit(main(["sweep", "-m", *{overrides!r}]))
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    root = tmp_path_factory.mktemp("extras") / "project"
    copy_sources(root)
    project = Project(root, {"LOWERDECK_PRELOAD": "0"})
    project.edit_params(model="resnet8", dataset="random", task="fidelity", tracking="none")
    return project


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["target=xnnpack_cpu,ethos_u55_128"], "target=ethos_u55_128 is invalid for every point"),
        (["target=ethos_u55_128", "build.seed=1,2"], "target=ethos_u55_128 is invalid for every point"),
    ],
    ids=["one of two targets", "the only target"],
)
def test_it_is_refused_before_anything_is_built(project: Project, overrides: list[str], said: str) -> None:
    done = project.run(sys.executable, "-c", SWEEP.format(missing=["ethosu"], overrides=overrides))
    assert done.returncode == 1, done.stdout
    assert said in done.stderr
    assert "pip install 'lowerdeck[ethos-u]'" in done.stderr
    assert not list(Path(project.root).glob("sweeps/*/points.jsonl"))
