"""lowerdeck.tracking.store: the identity of a local database, also while another process creates it."""

from __future__ import annotations

import errno
import sqlite3
from pathlib import Path

import pytest

from lowerdeck.config.schema import TrackingConfig
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.tracking.store import database_identity, find_or_create_experiment, opened
from tests.project import AWKWARD_FOLDER


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TrackingConfig:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return TrackingConfig(name="test", enabled=True, uri=f"sqlite:///{tmp_path}/mlflow.db", experiment="test")


def test_a_database_without_tables_has_the_identity_that_it_has_later(config: TrackingConfig, tmp_path: Path) -> None:
    """SQLite's file exists before its tables: a point of a sweep would be recorded twice, under two identities."""
    sqlite3.connect(tmp_path / "mlflow.db").close()
    (tmp_path / "mlflow.db").touch()
    before = database_identity(config)
    assert before == database_identity(config)
    assert before.rpartition(" of ")[2].isdigit()


def test_a_folder_may_have_any_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    folder = tmp_path / AWKWARD_FOLDER
    folder.mkdir()
    monkeypatch.chdir(folder)
    with opened(TrackingConfig(name="test", experiment="test")) as store:
        assert find_or_create_experiment(store, TrackingConfig(name="test")) == "1"
        default = store.client.get_experiment("0")
    assert (default.name, default.lifecycle_stage) == ("Default", "active")
    assert (folder / "mlflow" / "mlflow.db").is_file()


def test_another_database_at_the_same_place_has_another_identity(config: TrackingConfig, tmp_path: Path) -> None:
    before = database_identity(config)
    (tmp_path / "mlflow.db").unlink()
    assert database_identity(config) != before


def test_a_creation_that_was_interrupted_starts_again(
    config: TrackingConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MLflow does not go on with half of its migrations: `table _alembic_tmp_experiments already exists`."""

    def full(*_: object) -> None:
        raise OSError("No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("mlflow.store.tracking.sqlalchemy_store.SqlAlchemyStore._create_default_experiment", full)
        patched.setattr("lowerdeck.tracking.store._default_experiment", lambda _: full)
        with pytest.raises(LowerdeckError, match="No space left"), opened(config):
            pass
    assert not (tmp_path / "mlflow.db").exists()
    with opened(config) as store:
        assert store.client.get_experiment("0").name == "Default"
    assert [path.name for path in tmp_path.glob("*mlflow.db*") if "new" in path.name] == []


def test_what_mlflow_refuses_is_no_fault_of_the_database(config: TrackingConfig) -> None:
    def create_twice() -> None:
        with opened(config) as store:
            store.client.create_experiment("Default")

    with pytest.raises(LowerdeckError, match=r"refuses what was asked of it: .*already exists") as refused:
        create_twice()
    assert "cannot be used" not in str(refused.value)


def test_a_file_that_cannot_be_read_is_no_fault_of_the_database(config: TrackingConfig, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), opened(config):
        (tmp_path / "absent").read_bytes()


def test_a_full_disk_is_that_of_the_database(config: TrackingConfig, tmp_path: Path) -> None:
    """MLflow's own writes have no name: the message spoke of "a file"."""
    with pytest.raises(OSError, match="No space left") as full, opened(config):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert full.value.filename == str(tmp_path)


def test_a_database_that_cannot_be_opened_is_named_with_the_way_out(config: TrackingConfig, tmp_path: Path) -> None:
    (tmp_path / "mlflow.db").mkdir()
    with pytest.raises(LowerdeckError, match=r"unable to open database file.*\n.*must be writable"), opened(config):
        pytest.fail("opened")
