"""The MLflow database or server with the experiment and the run of a build."""

from __future__ import annotations

import glob
import hashlib
import os
import secrets
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lowerdeck.compat.mlflow import DEFAULT_EXPERIMENT
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.execution.preload import TRACKING
from lowerdeck.tracking import local_database
from lowerdeck.tracking.address import (
    artifact_location,
    database_file,
    present_locations,
    redact_credentials,
    refused_message,
    tracking_uri,
    unavailable_message,
)
from lowerdeck.tracking.probe import probe

if TYPE_CHECKING:
    from mlflow.entities import Experiment, Run
    from mlflow.tracking import MlflowClient

    from lowerdeck.config.schema import TrackingConfig

BUILD_KEY_TAG = "lowerdeck.build_key"
"""The tag that identifies the run of a build."""
SWEEP_TAGS = ("sweep.id", "sweep.overrides")
"""The tags that identify the run of a point of a sweep."""
LOCK_TIMEOUT_S = 60.0

_UPLOAD_TIMEOUT_S = 120


@dataclass(frozen=True, kw_only=True)
class TrackingStore:
    """A tracking database or server that responds."""

    client: MlflowClient
    uri: str


@contextmanager
def opened(config: TrackingConfig) -> Iterator[TrackingStore]:
    """The store of `config` and the environment; a local database is created if it does not exist.

    Raises:
        LowerdeckError: the store cannot be reached or refuses, here or in a call of MLflow inside the block.
    """
    uri = tracking_uri(config)
    for name, value in TRACKING.environment.items():
        os.environ.setdefault(name, value)
    probe(uri)
    import sqlalchemy.exc
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient

    try:
        default = _default_experiment(DEFAULT_EXPERIMENT.original())
        # Of two processes that create the tables of a new database at once, one would fail.
        with lock(uri), DEFAULT_EXPERIMENT.active(default):
            _create(uri, MlflowClient)
            local_database.move_files(uri, config.experiment, present_locations(config))
            client = MlflowClient(tracking_uri=uri)
    except (MlflowException, sqlalchemy.exc.SQLAlchemyError, OSError) as error:
        raise LowerdeckError(unavailable_message(uri, str(error))) from error
    try:
        yield TrackingStore(client=client, uri=uri)
    except MlflowException as error:
        status: int = error.get_http_status_code()  # type: ignore[no-untyped-call]
        is_refusal = 400 <= status < 500
        message = refused_message if is_refusal else unavailable_message
        raise LowerdeckError(message(uri, str(error))) from error
    except (sqlalchemy.exc.SQLAlchemyError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            if error.filename is None and (database := database_file(uri)) is not None:  # a write to a full disk
                error.filename = str(database.parent)
            raise  # of a file; those of requests have none
        raise LowerdeckError(unavailable_message(uri, str(error))) from error


def _create(uri: str, client: Callable[..., Any]) -> None:
    """Create a local database that does not exist, under another name until it is whole.

    MLflow makes its tables by dozens of migrations, and goes on with none that was interrupted.
    """
    database = database_file(uri)
    if database is None or (database.is_file() and database.stat().st_size):
        return
    location, mark, query = uri.partition("?")
    folder, slash, name = location.rpartition("/")
    for left in database.parent.glob(f".{glob.escape(database.name)}.*.new*"):  # by a full disk or a kill
        left.unlink(missing_ok=True)
    # Each time another name: MLflow keeps what it has opened by its address.
    new = f"{folder}{slash}.{name}.{secrets.token_hex(4)}.new{mark}{query}"
    client(tracking_uri=new)
    file = database_file(new)
    assert file is not None
    file.replace(database)


def _default_experiment(original: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    """MLflow's method that adds its default experiment to a new database, with bound values where that is a file."""

    def create(store: Any, session: Any) -> None:
        from mlflow.entities import Experiment, LifecycleStage
        from mlflow.store.tracking.dbmodels.models import SqlExperiment

        if store.db_type != "sqlite":
            original(store, session)
            return
        created_ms = time.time_ns() // 1_000_000
        session.add(
            SqlExperiment(
                experiment_id=int(store.DEFAULT_EXPERIMENT_ID),
                name=Experiment.DEFAULT_EXPERIMENT_NAME,
                artifact_location=str(store._get_artifact_location(0)),
                lifecycle_stage=LifecycleStage.ACTIVE,
                creation_time=created_ms,
                last_update_time=created_ms,
            )
        )

    return create


def database_identity(config: TrackingConfig) -> str:
    """The address of a server, or the path and creation time of a local database, which may be replaced by another.

    A local database is created if it does not exist. An existing one is read without importing MLflow, which takes
    seconds.
    """
    uri = tracking_uri(config)
    database = database_file(uri)
    if database is None:
        return redact_credentials(uri)
    created = _creation_time(database)
    if created is None:
        with opened(config):  # creates it, or waits for the process that is creating it
            pass
        created = _creation_time(database)
    return f"{uri} of {created}"


def _creation_time(database: Path) -> int | None:
    """Creation time of a local database in ms since 1970; None if it does not exist or has no tables yet."""
    if not database.is_file():
        return None
    created: int | None = None
    with closing(sqlite3.connect(database)) as connection, suppress(sqlite3.Error):
        (created,) = connection.execute("SELECT min(creation_time) FROM experiments").fetchone()
    return created


@contextmanager
def extended_upload_timeout() -> Iterator[None]:
    """Raise the server's timeout, which suits short calls, for large files."""
    name = "MLFLOW_HTTP_REQUEST_TIMEOUT"
    before = os.environ[name]
    if before == TRACKING.environment[name]:
        os.environ[name] = str(_UPLOAD_TIMEOUT_S)
    try:
        yield
    finally:
        os.environ[name] = before


def find_experiment(store: TrackingStore, name: str) -> Experiment | None:
    """The experiment `name`; None if it does not exist.

    Raises:
        LowerdeckError: it was deleted, and can neither be used nor created again.
    """
    experiment = store.client.get_experiment_by_name(name)
    if experiment is not None:
        active_experiment(store.uri, name, experiment.experiment_id, experiment.lifecycle_stage)
    return experiment


def active_experiment(uri: str, name: str, experiment_id: str, lifecycle_stage: str) -> str:
    """The id of an experiment that was found at `uri`.

    Raises:
        LowerdeckError: it was deleted.
    """
    if lifecycle_stage != "active":
        raise LowerdeckError(
            f"the MLflow experiment {name!r} in {redact_credentials(uri)} was deleted. Bring it back "
            f"with `mlflow experiments restore --experiment-id {experiment_id}`, or choose another "
            "name in `tracking.experiment`."
        )
    return experiment_id


def find_or_create_experiment(store: TrackingStore, config: TrackingConfig) -> str:
    """The id of the configured experiment; the caller has to hold the lock.

    Raises:
        LowerdeckError: the experiment was deleted.
    """
    experiment = find_experiment(store, config.experiment)
    if experiment is not None:
        return experiment.experiment_id
    location = artifact_location(config) if database_file(store.uri) is not None else None
    return store.client.create_experiment(config.experiment, artifact_location=location)


def find_or_create_run(
    store: TrackingStore, config: TrackingConfig, key: str, name: str, sweep_tags: Mapping[str, str]
) -> tuple[Run, bool]:
    """The run of the build `key`, and whether it is new; MLFLOW_RUN_ID is ignored.

    Searching and creating happen under one lock, so that two processes with the same key get the same run.

    Args:
        store: Where to search.
        config: Contains the name of the experiment.
        key: Build key.
        name: Name of a new run.
        sweep_tags: Tags of a point of a sweep, empty for a build. A point has a run of its own, even if a build or
            another sweep has the same key, so that all points of a sweep can be found.
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
    """Exclude other processes that use the same database file, or, for a server, those of this user and machine."""
    from filelock import FileLock, Timeout

    database = database_file(uri)
    if database is not None:
        database.parent.mkdir(parents=True, exist_ok=True)
        path = database.with_name(f"{database.name}.lock")
    else:
        user = os.getuid() if hasattr(os, "getuid") else "user"
        path = Path(tempfile.gettempdir()) / f"lowerdeck-{user}-{hashlib.sha256(uri.encode()).hexdigest()[:16]}.lock"
    try:
        acquired = FileLock(path).acquire(timeout=LOCK_TIMEOUT_S)
    except Timeout:
        raise LowerdeckError(
            f"another process has locked {path} for {LOCK_TIMEOUT_S:.0f} s; when it has ended, `dvc repro` records "
            "this build"
        ) from None
    with acquired:
        yield
