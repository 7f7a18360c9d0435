"""Reads runs: of a local database with sqlite3, of any other through MLflow's client, imported when it is needed."""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.tracking import local_database
from lowerdeck.tracking.address import local_folder, present_locations, run_address, tracking_uri, unavailable_message
from lowerdeck.tracking.local_database import LocalDatabase, UnreadableError
from lowerdeck.tracking.recorded_run import KIND_TAG, Condition, RecordedRun
from lowerdeck.tracking.store import TrackingStore, active_experiment, extended_upload_timeout, find_experiment, opened

if TYPE_CHECKING:
    from mlflow.entities import Run

    from lowerdeck.config.schema import TrackingConfig

_MAX_PER_PAGE = 250
"""Page size, at most 1,000 in MLflow. Only one page of MLflow's objects is in memory at a time."""
_MAX_CONNECTIONS = 8
"""Files that are read at the same time."""
Result = TypeVar("Result")


@contextmanager
def reading(config: TrackingConfig) -> Iterator[Reader]:
    """Reads what is recorded where `config` says.

    Raises:
        LowerdeckError: the database, the server or a file cannot be read, here or inside the block.
    """
    uri = tracking_uri(config)
    try:
        with ExitStack() as stack:
            yield Reader(config=config, uri=uri, stack=stack)
    except OSError as error:
        if error.errno is not None:
            raise  # of a file; those of requests have none
        raise LowerdeckError(unavailable_message(uri, str(error))) from error


@dataclass(frozen=True)
class Reader:
    """Reads runs and their files."""

    config: TrackingConfig
    uri: str
    stack: ExitStack
    """Closes `store`, if it was opened."""

    @cached_property
    def store(self) -> TrackingStore:
        """MLflow's client, opened when it is first used."""
        return self.stack.enter_context(opened(self.config))

    @cached_property
    def present_location(self) -> Callable[[str], str]:
        """Address of a run's files as it was recorded -> the present one."""
        return present_locations(self.config)

    def experiment_id(self) -> str | None:
        """Id of the configured experiment; None if it does not exist.

        Raises:
            LowerdeckError: it was deleted.
        """
        name = self.config.experiment

        def by_mlflow() -> str | None:
            experiment = find_experiment(self.store, name)
            return None if experiment is None else experiment.experiment_id

        def locally(database: LocalDatabase) -> str | None:
            found = database.experiment(name)
            return None if found is None else active_experiment(self.uri, name, *found)

        return self._read(locally, by_mlflow)

    def search(self, experiment_id: str, condition: Condition | None = None) -> list[RecordedRun]:
        """The builds that meet `condition`, oldest first."""
        mlflow_filter = "" if condition is None else condition.mlflow_filter
        found = self._read(
            lambda database: database.search(experiment_id, condition),
            lambda: self.search_by_mlflow(experiment_id, mlflow_filter),
        )
        return [replace(run, artifact_uri=self.present_location(run.artifact_uri)) for run in found]

    def search_by_mlflow(self, experiment_id: str, mlflow_filter: str) -> list[RecordedRun]:
        """Builds that MLflow finds, page by page, oldest first, without other kinds of runs."""
        found: list[RecordedRun] = []
        token: str | None = None
        while True:
            # A page consists of some ten thousand live objects: garbage collection takes twice as long as reading them.
            with _without_garbage_collection():
                page = self.store.client.search_runs(
                    [experiment_id],
                    mlflow_filter,
                    max_results=_MAX_PER_PAGE,
                    order_by=["attributes.start_time ASC"],
                    page_token=token,
                )
                found += [_recorded(run, self.uri) for run in page if KIND_TAG not in run.data.tags]
            token = page.token
            if not token:
                return found

    def latest_tag(self, experiment_id: str, tag: str) -> str | None:
        """The value of `tag` of the most recent run that has it."""

        def by_mlflow() -> str | None:
            latest = self.store.client.search_runs(
                [experiment_id], f"tags.`{tag}` LIKE '%'", max_results=1, order_by=["attributes.start_time DESC"]
            )
            return latest[0].data.tags[tag] if latest else None

        return self._read(lambda database: database.latest_tag(experiment_id, tag), by_mlflow)

    def files(self, run_id: str, folder: str | None) -> set[str]:
        """Paths of a run's files in one of its folders; None is the folder of all."""
        root = self._folder(run_id)
        if root is None:
            client = self.store.client
            with extended_upload_timeout():
                return {info.path for info in client.list_artifacts(run_id, folder) if not info.is_dir}
        place = root / (folder or "")
        found = place.iterdir() if place.is_dir() else ()
        return {path.relative_to(root).as_posix() for path in found if not path.is_dir()}

    def content(self, run_id: str, path: str) -> bytes:
        """The content of one of the `files` of a run."""
        root = self._folder(run_id)
        if root is not None:
            return (root / path).read_bytes()
        client = self.store.client
        with extended_upload_timeout(), tempfile.TemporaryDirectory() as temporary:
            return Path(client.download_artifacts(run_id, path, temporary)).read_bytes()

    def contents(self, runs: Sequence[RecordedRun], path: str) -> dict[str, bytes]:
        """The content, by run, of a file in the folder of all of a run's files; runs without it are left out."""
        roots = self._read(
            lambda _: {run.run_id: local_folder(run.artifact_uri) for run in runs},
            lambda: dict.fromkeys((run.run_id for run in runs), None),
        )
        found: dict[str, bytes | None] = {
            run_id: (root / path).read_bytes() if (root / path).is_file() else None
            for run_id, root in roots.items()
            if root is not None
        }
        elsewhere = [run for run in runs if roots[run.run_id] is None]
        if elsewhere:
            uri = self.store.uri
            with extended_upload_timeout(), ThreadPoolExecutor(_MAX_CONNECTIONS) as pool:
                read = pool.map(lambda run: _content_elsewhere(uri, run, path), elsewhere)
                found |= {run.run_id: content for run, content in zip(elsewhere, read, strict=True)}
        return {run_id: content for run_id, content in found.items() if content is not None}

    def _folder(self, run_id: str) -> Path | None:
        location = self._read(lambda database: database.artifact_uri(run_id), lambda: "")
        return local_folder(self.present_location(location))

    def _read(self, locally: Callable[[LocalDatabase], Result], by_mlflow: Callable[[], Result]) -> Result:
        try:
            with local_database.opened(self.uri) as database:
                return locally(database)
        except UnreadableError:
            pass
        return by_mlflow()


def _content_elsewhere(uri: str, run: RecordedRun, path: str) -> bytes | None:
    """As `Reader.contents`, for one run. MLflow's client would look up the run first, which takes longer."""
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    files: Any = get_artifact_repository(run.artifact_uri, tracking_uri=uri)  # untyped
    if all(info.path != path for info in files.list_artifacts()):
        return None
    with tempfile.TemporaryDirectory() as temporary:
        return Path(files.download_artifacts(path, temporary)).read_bytes()


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Turn off the collection of cyclic garbage within the block."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _recorded(run: Run, uri: str) -> RecordedRun:
    return RecordedRun(
        run_id=run.info.run_id,
        name=run.info.run_name or "",
        status=run.info.status,
        start_time_ms=run.info.start_time,
        params=run.data.params,
        metrics=run.data.metrics,
        tags=run.data.tags,
        artifact_uri=run.info.artifact_uri or "",
        address=run_address(uri, run.info.experiment_id, run.info.run_id),
    )
