"""The table with which MLflow's page of the builds opens."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from mlflow.exceptions import MlflowException

from lowerdeck.config.schema import TrackingConfig
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.tracking import ui, view
from lowerdeck.tracking.comparisons import log_comparison
from lowerdeck.tracking.runs import find_runs
from lowerdeck.tracking.store import TrackingStore, find_or_create_experiment, opened


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> TrackingConfig:
    return TrackingConfig(name="local", uri=f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/mlflow.db")


@pytest.fixture
def store(config: TrackingConfig) -> Iterator[TrackingStore]:
    with opened(config) as found:
        yield found


def columns(store: TrackingStore, experiment_id: str) -> list[str]:
    found: list[str] = json.loads(store.client.get_experiment(experiment_id).tags[view.TAG])["selectedColumns"]
    return found


def test_an_experiment_has_it_once_with_the_accuracies_of_all_its_tasks(
    config: TrackingConfig, store: TrackingStore
) -> None:
    experiment = find_or_create_experiment(store, config)
    for primary in ("accuracy", "miou", "accuracy"):
        assert view.save(store, experiment, primary)
    assert columns(store, experiment)[:2] == ["metrics.`delegated_accuracy`", "metrics.`delegated_miou`"]
    assert {"metrics.`program_bytes`", "metrics.`delegated_share`", "tags.`target`", "tags.`gates`"} <= set(
        columns(store, experiment)
    )
    assert view.save(store, experiment)
    assert "metrics.`delegated_miou`" in columns(store, experiment)


def test_the_address_names_it_where_the_experiment_has_it(
    config: TrackingConfig, store: TrackingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = find_or_create_experiment(store, config)
    address = ui.locate(config, with_view=True).address("127.0.0.1", 5000)
    assert address.endswith(f"/runs?workflowType=machine_learning&viewStateShareKey={view.KEY}")
    assert view.QUERY not in ui.locate(config).address("127.0.0.1", 5000)
    store.client.delete_experiment_tag(experiment, view.TAG)

    def refused(*_: object) -> None:
        raise MlflowException("read only")

    monkeypatch.setattr(type(store.client), "set_experiment_tag", refused)
    assert view.QUERY not in ui.locate(config, with_view=True).address("127.0.0.1", 5000)


def test_comparisons_are_apart_from_builds(config: TrackingConfig, store: TrackingStore) -> None:
    for _ in range(2):
        log_comparison(config, name="comparison", labels=["a"], objectives="o", files={"compare.html": "text"})
    assert find_runs(config, selector=None) == []
    apart = store.client.get_experiment_by_name(f"{config.experiment} comparisons")
    assert apart is not None
    assert len(store.client.search_runs([apart.experiment_id])) == 1
    builds = store.client.get_experiment_by_name(config.experiment)
    assert builds is not None
    assert not store.client.search_runs([builds.experiment_id])


def test_without_any_build_there_is_nothing_to_open(tmp_path: Path) -> None:
    with pytest.raises(LowerdeckError, match="nothing has been recorded yet"):
        ui.locate(TrackingConfig(name="local", uri=f"sqlite:///{tmp_path}/mlflow.db"), with_view=True)
