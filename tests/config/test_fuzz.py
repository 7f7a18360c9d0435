"""Every configuration drawn from the schema composes or is refused in a message: nothing else is raised, none hangs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lowerdeck.artifacts.files import write_text
from lowerdeck.config.choices import Chosen
from lowerdeck.config.compose import compose, render
from lowerdeck.config.load import config_of
from lowerdeck.contracts.errors import LowerdeckError
from tests.config import hostile_values
from tests.project import SELECTION, Project

LONGEST = timedelta(seconds=60)
"""An example that takes longer counts as one that does not end; most take a tenth of a second."""
DRAWN = settings(
    derandomize=True, database=None, deadline=LONGEST, suppress_health_check=list(HealthCheck), print_blob=False
)
Attempt = Callable[[Path, Chosen | None], None]


@pytest.fixture(scope="module")
def folder(make_project: Callable[[str], Project]) -> Path:
    """A copy of the project with named pipes among its files, which would block whoever reads them."""
    root = make_project("fuzzed").root
    for name in hostile_values.PIPES:
        os.mkfifo(root / name)
    return root


@pytest.fixture
def attempt(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Attempt:
    """Compose params.yaml as the stage does."""
    monkeypatch.chdir(folder)

    def run(conf: Path, chosen: Chosen | None) -> None:
        try:
            config = compose(Path("params.yaml"), conf, chosen)
        except LowerdeckError as error:
            first = str(error).partition("\n")[0]
            assert first.strip()
            str(error).encode()
        else:
            write_text(Path("composed.yaml"), render(config))
            assert config_of(Path("composed.yaml").read_text(encoding="utf-8")) == config

    return run


def check_params(attempt: Attempt, max_examples: int) -> None:
    chosen: Chosen = {}

    @settings(DRAWN, max_examples=max_examples)
    @given(hostile_values.params())
    def check(values: dict[object, object]) -> None:
        Path("params.yaml").write_text(hostile_values.yaml_text(values), encoding="utf-8")
        attempt(Path("conf"), chosen)

    check()


def check_conf(attempt: Attempt, conf: Path, max_examples: int) -> None:
    shutil.copytree("conf", conf)

    @settings(DRAWN, max_examples=max_examples)
    @given(hostile_values.conf_files(), st.integers(0, 9))
    def check(file: tuple[Path, str], chooses_it: int) -> None:
        path, text = file
        group = path.parent.name
        selection = SELECTION | ({group: path.stem} if group and chooses_it else {})
        Path("params.yaml").write_text(hostile_values.yaml_text(selection), encoding="utf-8")
        before = (conf / path).read_bytes()
        (conf / path).write_bytes(text.encode("utf-8", "surrogatepass"))
        try:
            attempt(conf, None)
        finally:
            (conf / path).write_bytes(before)

    check()


def test_params(attempt: Attempt) -> None:
    check_params(attempt, 85)


def test_conf(attempt: Attempt, tmp_path: Path) -> None:
    check_conf(attempt, tmp_path / "conf", 15)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_much_of_params(attempt: Attempt) -> None:
    check_params(attempt, 1600)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_much_of_conf(attempt: Attempt, tmp_path: Path) -> None:
    check_conf(attempt, tmp_path / "conf", 400)
