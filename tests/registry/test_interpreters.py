"""Interpreters of other environments: which may be named, and what is said of the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from lowerdeck.registry.interpreters import folder_problem, interpreter_problem


@pytest.fixture
def python(tmp_path: Path) -> Path:
    path = tmp_path / "bin" / "python"
    path.parent.mkdir()
    path.touch(mode=0o755)
    return path


def test_an_interpreter_below_an_opened_folder_may_be_started(python: Path, tmp_path: Path) -> None:
    assert interpreter_problem(str(python), [str(tmp_path)]) is None
    assert folder_problem(str(tmp_path), [str(tmp_path)]) is None


def test_any_other_is_refused_with_the_way_to_open_it(python: Path) -> None:
    problem = interpreter_problem(str(python), ["my_models"])
    assert problem is not None
    assert f"plugins: [my_models, {python}]" in problem


def test_what_cannot_be_an_interpreter_is_named(python: Path, tmp_path: Path) -> None:
    for path, expected in {
        "bin/python": "is relative",
        str(tmp_path): "is a folder",
        str(tmp_path / "nowhere"): "there is no file",
    }.items():
        assert expected in str(interpreter_problem(path, [str(tmp_path)]))
    python.chmod(0o644)
    assert "is not executable" in str(interpreter_problem(str(python), [str(tmp_path)]))
