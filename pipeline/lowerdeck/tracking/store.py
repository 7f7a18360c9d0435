"""The MLflow database or server with the experiment and the run of a build."""

from __future__ import annotations

import hashlib
import os
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.execution.preload import TRACKING
from lowerdeck.tracking.address import (
    artifact_location,
    database_file,
    redact_credentials,
    tracking_uri,
    unavailable_message,
)
from lowerdeck.tracking.probe import probe

if TYPE_CHECKING:
    from mlflow.entities import Experiment, Run
    from mlflow.tracking import MlflowClient

    from lowerdeck.config.schema import TrackingConfig

BUILD_KEY_TAG = "lowerdeck.build_key"
"""The tag by which the run of a build is found again."""
SWEEP_TAGS = ("sweep.id", "sweep.overrides")
"""The tags by which the run of a point of a sweep is found again."""
LOCK_TIMEOUT_S = 60.0

# Less output, and limits of seconds: with MLflow's defaults a call to a server that stops answering takes four minutes.
# Settings of the user are kept.
_ENVIRONMENT = {
    **TRACKING.environment,
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "4",
}
_UPLOAD_TIMEOUT_S = 120


@dataclass(frozen=True, kw_only=True)
class Store:
    """A tracking database or server that answers."""

    client: MlflowClient
    uri: str


@contextmanager
def opened(config: TrackingConfig) -> Iterator[Store]:
    """The store that `config` and the environment name, created where it is a local database that does not exist yet.

    Raises:
        LowerdeckError: it cannot be reached or refuses; this holds for what MLflow raises inside the block, too.
    """
    uri = tracking_uri(config)
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    probe(uri)
    import sqlalchemy.exc
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient

    try:
        with lock(uri):  # two processes at once on a new database both create its tables, and one fails
            client = MlflowClient(tracking_uri=uri)
        yield Store(client=client, uri=uri)
    except (MlflowException, sqlalchemy.exc.SQLAlchemyError, OSError) as error:
        raise LowerdeckError(unavailable_message(uri, str(error))) from error


def database_identity(config: TrackingConfig) -> str:
    """Identifies a local database even if another replaces it after removal; a server by its address.

    A local database that does not exist yet is made. An existing one is read without MLflow, whose import takes
    seconds.
    """
    uri = tracking_uri(config)
    database = database_file(uri)
    if database is None:
        return redact_credentials(uri)
    if not database.is_file():
        with opened(config):
            pass
    with closing(sqlite3.connect(database)) as connection, suppress(sqlite3.Error):
        (created,) = connection.execute("SELECT min(creation_time) FROM experiments").fetchone()
        return f"{uri} of {created}"
    return uri


@contextmanager
def extended_upload_timeout() -> Iterator[None]:
    """Give a server the time that large files need; the short limits are for calls that should return at once."""
    name = "MLFLOW_HTTP_REQUEST_TIMEOUT"
    before = os.environ[name]
    if before == _ENVIRONMENT[name]:
        os.environ[name] = str(_UPLOAD_TIMEOUT_S)
    try:
        yield
    finally:
        os.environ[name] = before


def find_experiment(store: Store, name: str) -> Experiment | None:
    """The experiment `name`, None where there is none yet.

    Raises:
        LowerdeckError: it was deleted, so it can neither be used nor created again.
    """
    experiment = store.client.get_experiment_by_name(name)
    if experiment is not None and experiment.lifecycle_stage != "active":
        raise LowerdeckError(
            f"the MLflow experiment {name!r} in {redact_credentials(store.uri)} was deleted. Bring it back "
            f"with `mlflow experiments restore --experiment-id {experiment.experiment_id}`, or choose another "
            "name in `tracking.experiment`."
        )
    return experiment


def find_or_create_experiment(store: Store, config: TrackingConfig) -> str:
    """The id of the configured experiment; the caller holds the lock.

    Raises:
        LowerdeckError: the experiment was deleted.
    """
    experiment = find_experiment(store, config.experiment)
    if experiment is not None:
        return experiment.experiment_id
    location = artifact_location(config) if database_file(store.uri) is not None else None
    return store.client.create_experiment(config.experiment, artifact_location=location)


def find_or_create_run(
    store: Store, config: TrackingConfig, key: str, name: str, sweep_tags: Mapping[str, str]
) -> tuple[Run, bool]:
    """The run of the build `key`, and whether it is new; MLFLOW_RUN_ID is ignored.

    Two processes with the same key get the same run: looking and creating happen under one lock.

    Args:
        store: Where to look.
        config: Names the experiment.
        key: Build key.
        name: Of a new run.
        sweep_tags: Tags of a point of a sweep, empty for a build. A point has its own run, even where a build or
        another
            sweep made the same, so that all points of a sweep are found.
    """
    with lock(store.uri):
        experiment_id = find_or_create_experiment(store, config)
        found = store.client.search_runs(
            [experiment_id], f"tags.`{BUILD_KEY_TAG}` = '{key}'", order_by=["attributes.start_time ASC"]
        )
        for run in found:
            if all(run.data.tags.get(tag) == sweep_tags.get(tag) for tag in SWEEP_TAGS):
                return run, False
        return store.client.create_run(experiment_id, tags={BUILD_KEY_TAG: key, **sweep_tags}, run_name=name), True


@contextmanager
def lock(uri: str) -> Iterator[None]:
    """Lock out other processes: all that share a database file; for a server, those of this user on this machine."""
    from filelock import FileLock, Timeout

    database = database_file(uri)
    if database is not None:
        database.parent.mkdir(parents=True, exist_ok=True)
        path = database.with_name(f"{database.name}.lock")
    else:
        user = os.getuid() if hasattr(os, "getuid") else "user"
        path = Path(tempfile.gettempdir()) / f"lowerdeck-{user}-{hashlib.sha256(uri.encode()).hexdigest()[:16]}.lock"
    lock = FileLock(path, timeout=LOCK_TIMEOUT_S)
    try:
        lock.acquire()
    except Timeout:
        raise LowerdeckError(
            f"another process has locked {path} for {LOCK_TIMEOUT_S:.0f} s; when it has ended, `dvc repro` records "
            "this build"
        ) from None
    try:
        yield
    finally:
        lock.release()
