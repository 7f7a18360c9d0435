"""lowerdeck.tracking.prepare: the database of track is made before its turn, or not at all."""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.project import Project


def prepare(project: Path, preload: str = "0", **tracking: Any) -> Path:
    """Run the module in a project with these settings of tracking; returns where the database would be."""
    (project / "build").mkdir(exist_ok=True)
    settings = {"name": "local", "uri": "sqlite:///mlflow/mlflow.db"} | tracking
    (project / "build" / "config.yaml").write_text(yaml.safe_dump({"tracking": settings}))
    done = Project(project, {}).run(sys.executable, "-m", "lowerdeck.tracking.prepare", LOWERDECK_PRELOAD=preload)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    return project / "mlflow" / "mlflow.db"


def experiments(database: Path) -> list[str]:
    with closing(sqlite3.connect(database)) as connection:
        return [name for (name,) in connection.execute("SELECT name FROM experiments")]


@pytest.mark.parametrize("preload", ["0", "1"])
def test_a_missing_database_is_created(preload: str, tmp_path: Path) -> None:
    assert experiments(prepare(tmp_path, preload)) == ["Default"]


def test_an_existing_one_is_left_alone(tmp_path: Path) -> None:
    database = tmp_path / "mlflow" / "mlflow.db"
    database.parent.mkdir()
    database.write_bytes(b"somebody's")
    prepare(tmp_path)
    assert database.read_bytes() == b"somebody's"


@pytest.mark.parametrize("settings", [{"enabled": False}, {"uri": "http://127.0.0.1:9"}])
def test_what_needs_no_database_gets_none(settings: dict[str, Any], tmp_path: Path) -> None:
    assert not prepare(tmp_path, **settings).parent.exists()


def test_what_fails_is_left_to_track(tmp_path: Path) -> None:
    (tmp_path / "mlflow").write_text("a file where the folder would be")
    prepare(tmp_path)
