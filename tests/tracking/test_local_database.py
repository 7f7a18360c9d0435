"""A local MLflow database is read with sqlite3 as MLflow reads it, and left to MLflow wherever it may be different."""

from __future__ import annotations

import math
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from mlflow.entities import Metric, Param, RunTag
from mlflow.tracking import MlflowClient

from lowerdeck.config.schema import TrackingConfig
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.tracking import local_database, runs
from lowerdeck.tracking.address import local_folder
from lowerdeck.tracking.local_database import UnreadableError
from lowerdeck.tracking.reader import Reader, reading
from lowerdeck.tracking.recorded_run import KIND_TAG, NAME_TAG, Condition, RecordedRun
from tests.project import AWKWARD_FOLDER

NAMES = ("first", "second", "Ünï 'quoted' %_\\ name", "second")
CONDITIONS = [
    None,
    *(Condition(tag=NAME_TAG, value=name) for name in (*NAMES[:3], "SECOND", "secon", "")),
    Condition(tag="sweep.id", value="aa11bb22"),
    *(Condition(tag="sweep.id", value=value, is_prefix=True) for value in ("aa11", "AA11", "aa11cc", "ffff")),
    *(Condition(tag=None, value=value, is_prefix=True) for value in ("0", "1", "7", "a", "f", "ffffffff")),
    Condition(tag="sweep.name", value="x"),
]


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All that MLflow stores in its own way: metrics logged twice, NaN, infinite; runs deleted or of another kind."""
    folder = tmp_path_factory.mktemp("database") / AWKWARD_FOLDER.replace("%", "")
    folder.mkdir()
    client = MlflowClient(f"sqlite:///{folder.as_posix().replace('?', '%3F')}/mlflow.db")
    experiment = client.create_experiment("lowerdeck", artifact_location=(folder / "artifacts").as_uri())
    other = client.create_experiment("other")
    client.create_run(other, run_name="first")
    for number, name in enumerate(NAMES):
        tags = {"sweep.id": ("aa11bb22", "aa11cc33")[number % 2], "sweep.point": str(number)} if number else {}
        run = client.create_run(experiment, start_time=1000 - number // 2, tags=tags, run_name=name)
        values = (math.nan, math.inf, -math.inf, 0.1 + number, -0.0, 2**53 + 1.0, 5e-324)
        metrics = [Metric(f"metric {place}", value, 0, 0) for place, value in enumerate(values)]
        later = [Metric("metric 0", 3.0, 1, 1), Metric("metric 3", 7.5 + number, 5, 1)]
        params = [Param("long", "x" * 6000), Param("empty", ""), Param("ü.key", "ä\n%")]
        client.log_batch(run.info.run_id, metrics, params, [RunTag("note", "ü" * 4000)])
        client.log_batch(run.info.run_id, later[number % 2 :])
        client.log_text(run.info.run_id, f"details {number}", "details.json")
        client.log_text(run.info.run_id, "twin", "twins/0 ü.tflite")
        client.set_terminated(run.info.run_id, ("FINISHED", "FAILED")[number % 2])
    client.create_run(experiment, tags={KIND_TAG: "comparison"}, run_name="first")
    client.delete_run(client.create_run(experiment, run_name="first").info.run_id)
    client.create_run(experiment, run_name="running")
    client.delete_experiment(client.create_experiment("gone"))
    return folder / "mlflow.db"


@pytest.fixture
def config(database: Path, monkeypatch: pytest.MonkeyPatch) -> TrackingConfig:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return config_of(database)


def config_of(database: Path, experiment: str = "lowerdeck") -> TrackingConfig:
    return TrackingConfig(name="local", uri=f"sqlite:///{str(database).replace('?', '%3F')}", experiment=experiment)


@pytest.fixture
def without_mlflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing may be left to MLflow."""
    monkeypatch.setattr(Reader, "store", property(lambda _: pytest.fail("MLflow was used")))


def comparable(found: list[RecordedRun]) -> list[RecordedRun]:
    """The same with NaN as a text: it is not equal to itself."""
    return [
        replace(run, metrics={name: repr(value) for name, value in run.metrics.items()})  # type: ignore[misc]
        for run in found
    ]


@pytest.mark.parametrize("condition", CONDITIONS, ids=str)
def test_runs_are_those_that_mlflow_finds(config: TrackingConfig, condition: Condition | None) -> None:
    with reading(config) as reader:
        experiment = reader.experiment_id()
        assert experiment is not None
        with local_database.opened(reader.uri) as opened:
            found = opened.search(experiment, condition)
        wanted = reader.search_by_mlflow(experiment, "" if condition is None else condition.mlflow_filter)
    assert comparable(found) == comparable(wanted)
    assert all(type(value) is float for run in found for value in run.metrics.values())


def test_the_conditions_select_some_but_not_all(config: TrackingConfig, without_mlflow: None) -> None:
    with reading(config) as reader:
        experiment = reader.experiment_id()
        assert experiment is not None
        sizes = [len(reader.search(experiment, condition)) for condition in CONDITIONS]
    assert sizes[:7] == [5, 1, 2, 1, 0, 0, 0]
    assert sizes[7:12] == [1, 3, 0, 2, 0]


def test_the_latest_tag_is_that_of_mlflow(config: TrackingConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    found = runs.latest_sweep(config)
    monkeypatch.setattr(local_database, "SCHEMA", "another")
    assert found == runs.latest_sweep(config) == "aa11cc33"


def test_files_are_those_of_mlflow(config: TrackingConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    def read() -> list[object]:
        ids = [run.run_id for run in runs.find_runs(config, selector=None)]
        with reading(config) as reader:
            listed = [reader.files(run_id, folder) for run_id in ids for folder in (None, "twins", "none")]
            contents = reader.contents(runs.find_runs(config, selector=None), "details.json")
        return [
            listed,
            contents,
            runs.read_folder(config, ids[0], "twins"),
            runs.read_artifact(config, ids[0], "details.json"),
        ]

    found = read()
    monkeypatch.setattr(local_database, "SCHEMA", "another")
    assert found == read()
    assert len(found[1]) == len(NAMES)  # type: ignore[arg-type]


@pytest.mark.usefixtures("config")
@pytest.mark.parametrize("schema", ["another", None])
def test_a_deleted_or_missing_experiment_is_reported_alike(
    database: Path, schema: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_database, "SCHEMA", schema or local_database.SCHEMA)
    with pytest.raises(LowerdeckError, match=r"(?s)'gone' in .* was deleted.*--experiment-id 3"):
        runs.find_runs(config_of(database, "gone"), selector=None)
    with pytest.raises(LowerdeckError, match="nothing has been recorded yet in the experiment 'new'"):
        runs.find_runs(config_of(database, "new"), selector=None)


def test_the_schema_is_that_of_the_installed_mlflow(database: Path) -> None:
    """If this fails after an update of MLflow: compare its models of runs, tags, params and latest_metrics first."""
    with closing(sqlite3.connect(database)) as connection:
        assert connection.execute("SELECT version_num FROM alembic_version").fetchall() == [(local_database.SCHEMA,)]


def test_a_query_in_the_address_a_server_and_workspaces_are_left_to_mlflow(
    config: TrackingConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    for uri in (f"{config.uri}?timeout=5", "http://127.0.0.1:1", "postgresql://host/name", "sqlite://"):
        with pytest.raises(UnreadableError), local_database.opened(uri):
            pytest.fail(uri)
    monkeypatch.setenv("MLFLOW_WORKSPACE", "team")
    with pytest.raises(UnreadableError), local_database.opened(config.uri):
        pytest.fail("workspace")


def copy_of(database: Path, folder: Path) -> Path:
    copied = folder / "mlflow.db"
    copied.write_bytes(database.read_bytes())
    return copied


def test_while_another_process_writes(
    config: TrackingConfig, database: Path, tmp_path: Path, without_mlflow: None
) -> None:
    """A transaction that has locked the database ends before the time limit; before it ends nothing of it is seen."""
    copied = copy_of(database, tmp_path)
    with closing(sqlite3.connect(copied, check_same_thread=False, isolation_level=None)) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        connection.execute("UPDATE runs SET status = 'KILLED'")
        timer = threading.Timer(0.5, lambda: connection.execute("COMMIT"))
        timer.start()
        found = runs.find_runs(config_of(copied), selector=None)
        timer.join()
    assert {run.status for run in found} == {"KILLED"}


def test_a_write_ahead_log_is_read_too(
    config: TrackingConfig, database: Path, tmp_path: Path, without_mlflow: None
) -> None:
    copied = copy_of(database, tmp_path)
    with closing(sqlite3.connect(copied)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("UPDATE runs SET status = 'KILLED'")
        connection.commit()
        assert (tmp_path / "mlflow.db-wal").stat().st_size > 0
        found = runs.find_runs(config_of(copied), selector=None)
    assert {run.status for run in found} == {"KILLED"}


def test_reading_changes_no_byte(config: TrackingConfig, database: Path, without_mlflow: None) -> None:
    before = database.read_bytes()
    runs.find_runs(config, selector="second")
    assert database.read_bytes() == before


def test_a_transaction_that_a_killed_process_left_is_rolled_back(
    config: TrackingConfig, database: Path, tmp_path: Path
) -> None:
    """sqlite3 cannot do so on a database opened for reading, but MLflow can."""
    copied = copy_of(database, tmp_path)
    program = (
        "import os, sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('PRAGMA cache_size = 1'); "
        "c.execute('PRAGMA cache_spill = 1'); c.execute(\"UPDATE params SET value = 'changed'\"); os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", program, str(copied)], check=True)
    assert (tmp_path / "mlflow.db-journal").is_file()
    found = runs.find_runs(config_of(copied), selector="first")
    assert found[0].params["ü.key"] == "ä\n%"


@pytest.mark.parametrize("content", [b"", b"SQLite format 3\0" + b"\xff" * 4096, b"no database\n" * 400])
def test_a_damaged_database_is_left_to_mlflow(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "mlflow.db").write_bytes(content)
    with pytest.raises(UnreadableError), local_database.opened(config_of(tmp_path / "mlflow.db").uri):
        pytest.fail("opened")
    if content:
        with pytest.raises(LowerdeckError, match=r"(?s)the MLflow database .* cannot be used: "):
            runs.find_runs(config_of(tmp_path / "mlflow.db"), selector=None)


def test_a_database_of_another_mlflow_can_be_upgraded(config: TrackingConfig, database: Path, tmp_path: Path) -> None:
    copied = copy_of(database, tmp_path)
    with closing(sqlite3.connect(copied)) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '5b0e9adcef9c'")
        connection.commit()
    with pytest.raises(LowerdeckError) as caught:
        runs.find_runs(config_of(copied), selector=None)
    assert "out-of-date database schema" in (said := str(caught.value))
    assert f"`mlflow db upgrade {config_of(copied).uri}`" in said
    assert "must be writable" not in said


@pytest.mark.parametrize(
    ("uri", "folder"),
    [
        ("file:///a/b%20c", "/a/b c"),
        ("file://host/a", None),
        ("s3://bucket/a", None),
        ("mlflow-artifacts:/1/a", None),
        ("./mlruns/1", None),
        ("", None),
    ],
)
def test_files_elsewhere_are_left_to_mlflow(uri: str, folder: str | None) -> None:
    assert local_folder(uri) == (None if folder is None else Path(folder))
