"""Finding recorded builds: a real sqlite database with runs of `record` and of the tracking API."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient

from lowerdeck.artifacts import paths
from lowerdeck.config.schema import TrackingConfig
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.provenance import lineage
from lowerdeck.tracking import local_database, reader, runs
from lowerdeck.tracking.record import record
from lowerdeck.tracking.recorded_run import KIND_TAG
from tests.handmade_build import write_build

NAME = "tiny neutron_imxrt700 int8 reference"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Two builds, three points of two sweeps, and a run that is no build; yields their ids by what they are."""
    folder = tmp_path_factory.mktemp("recorded")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name in [name for name in os.environ if name.startswith("MLFLOW_")]:
            patch.delenv(name)
        for accuracy in (0.5, 0.75):
            config = write_build(metrics={"quantized_accuracy": accuracy}, build={"seed": int(8 * accuracy)})
            record(config, lineage.trace(config))
        client = MlflowClient(f"sqlite:///{folder}/mlflow/mlflow.db")
        lowerdeck = client.get_experiment_by_name("lowerdeck")
        assert lowerdeck is not None
        experiment = lowerdeck.experiment_id
        ids = [run.info.run_id for run in client.search_runs([experiment], order_by=["attributes.start_time ASC"])]
        start_ms = client.get_run(ids[-1]).info.start_time
        for offset_ms, sweep, name in ((1, "aa11bb22", "precision"), (3, "aa11cc33", ""), (2, "aa11bb22", "precision")):
            tags = {"sweep.id": sweep, "sweep.name": name, "sweep.point": "0"}
            run = client.create_run(experiment, start_ms + offset_ms, tags, f"point {offset_ms}")
            ids.append(run.info.run_id)
        client.create_run(experiment, start_ms + 9, {KIND_TAG: "comparison"}, NAME)
        yield dict(zip(("first", "second", "point 1", "point 3", "point 2"), ids, strict=True))


@pytest.fixture(autouse=True)
def _in_new_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True, params=["sqlite3", "MLflow"])
def read_by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every test reads the database with sqlite3, and again with MLflow as if its tables were of another version."""
    if request.param == "MLflow":
        monkeypatch.setattr(local_database, "SCHEMA", "of another version")
    return str(request.param)


@pytest.fixture
def config(recorded: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> TrackingConfig:
    database = next(tmp_path_factory.getbasetemp().glob("recorded*")) / "mlflow" / "mlflow.db"
    return TrackingConfig(name="local", uri=f"sqlite:///{database}")


def found(config: TrackingConfig, selector: str | None) -> list[str]:
    return [run.run_id for run in runs.find_runs(config, selector=selector)]


def test_all_builds_oldest_first_and_nothing_that_is_none(recorded: dict[str, str], config: TrackingConfig) -> None:
    order = ("first", "second", "point 1", "point 2", "point 3")
    assert found(config, None) == [recorded[name] for name in order]


def test_a_run_says_all_that_was_recorded(recorded: dict[str, str], config: TrackingConfig) -> None:
    first = runs.find_runs(config, selector=recorded["first"])[0]
    assert (first.name, first.status) == (NAME, "FINISHED")
    assert (first.params["build.seed"], first.metrics["quantized_accuracy"]) == ("4", 0.5)
    assert first.tags["target"] == "neutron_imxrt700"


def test_selectors(recorded: dict[str, str], config: TrackingConfig) -> None:
    both = [recorded["first"], recorded["second"]]
    points = [recorded["point 1"], recorded["point 2"]]
    assert found(config, recorded["second"][:12]) == both[1:]
    assert found(config, NAME) == both
    assert found(config, "aa11bb22") == found(config, "aa11bb") == found(config, "precision") == points
    assert found(config, "metrics.quantized_accuracy > 0.6") == both[1:]


def test_many_runs_come_in_pages(
    recorded: dict[str, str], config: TrackingConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = found(config, None)
    monkeypatch.setattr(reader, "_MAX_PER_PAGE", 2)
    assert found(config, None) == whole
    assert len(whole) == 5


def test_an_ambiguous_beginning_lists_what_it_begins(recorded: dict[str, str], config: TrackingConfig) -> None:
    with pytest.raises(
        LowerdeckError, match=r"(?s)ids of 2 runs or sweeps start with 'aa11'.*sweep aa11bb22\n.*sweep aa11cc33"
    ):
        found(config, "aa11")


@pytest.mark.parametrize(
    ("selector", "message"),
    [
        ("precison", "did you mean 'precision'"),
        ("", "allowed: the name or id"),
        ('say "x"', "allowed: the name or id"),
        ("metrics.quantized_accuracy >> 2", "does not understand the filter"),
        ("metrics.quantized_accuracy > 2", "matches the filter"),
        ("%%%%", "is called '%%%%'"),
    ],
)
def test_what_is_not_there_is_said(
    recorded: dict[str, str], config: TrackingConfig, selector: str, message: str
) -> None:
    with pytest.raises(LowerdeckError, match=message):
        found(config, selector)


def test_the_latest_sweep_is_that_of_the_last_point(recorded: dict[str, str], config: TrackingConfig) -> None:
    assert runs.latest_sweep(config) == "aa11cc33"


def test_without_a_database_none_is_made() -> None:
    with pytest.raises(LowerdeckError, match="nothing has been recorded yet"):
        found(TrackingConfig(name="local"), None)
    assert not Path("mlflow").exists()


def test_artifacts_are_read_and_near_names_are_offered(recorded: dict[str, str], config: TrackingConfig) -> None:
    plan = runs.read_artifact(config, recorded["first"], paths.PLAN.name)
    assert b"no such kernel" in plan
    assert runs.read_artifact(config, recorded["first"], "twins/partition_0.tflite") == b"twin"
    with pytest.raises(LowerdeckError, match=r"Did you mean plan\.json"):
        runs.read_artifact(config, recorded["first"], "plans.json")
    with pytest.raises(LowerdeckError, match="has no file 'twins'"):
        runs.read_artifact(config, recorded["first"], "twins")
