"""Searches recorded builds by id, name, sweep or MLflow filter."""

from __future__ import annotations

import gc
import json
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.registry import components
from lowerdeck.tracking.address import redact_credentials, run_address
from lowerdeck.tracking.content import DETAILS
from lowerdeck.tracking.store import TrackingStore, extended_upload_timeout, opened
from lowerdeck.tracking.ui import locate

if TYPE_CHECKING:
    from mlflow.entities import Run

    from lowerdeck.config.schema import TrackingConfig

KIND_TAG = "lowerdeck.kind"
"""Tag of runs that are not builds, with their kind."""
SWEEP_ID_TAG, SWEEP_NAME_TAG = "sweep.id", "sweep.name"
MIN_PREFIX = 4
"""Least number of characters of an abbreviated id."""
_MAX_PER_PAGE = 250
"""Page size, at most 1,000 in MLflow. Only one page of MLflow's objects is in memory at a time."""
_MAX_LISTED = 8
_MAX_CONNECTIONS = 8
"""Files that are read at the same time."""
_COMPARES = re.compile(r"[=<>]|\b(I?LIKE|IN|IS)\b")
"""Matches MLflow filters but no names of runs or sweeps."""
_ID_PREFIX = re.compile(rf"[0-9a-f]{{{MIN_PREFIX},32}}")


@dataclass(frozen=True, kw_only=True)
class RecordedRun:
    """The run of a build."""

    run_id: str
    name: str
    status: str
    """MLflow's status: FINISHED, FAILED, RUNNING, KILLED or SCHEDULED."""
    start_time_ms: int
    """Milliseconds since 1970, UTC."""
    params: Mapping[str, str]
    """The configuration, flat."""
    metrics: Mapping[str, float]
    """The latest value of each; NaN if it is no longer measured."""
    tags: Mapping[str, str]
    """Tags; `with_details` adds the texts that are in a file of the run."""
    artifact_uri: str = ""
    """Location of its files."""
    address: str = ""
    """Of its page."""


def find_runs(config: TrackingConfig, *, selector: str | None) -> list[RecordedRun]:
    """The recorded builds that `selector` names, oldest first.

    Args:
        config: Where builds are recorded.
        selector: Id or name of a run or a sweep, the unique start of an id (at least four characters), or an MLflow
            filter such as `metrics.quantized_accuracy > 0.9`. None for all builds.

    Returns:
        At least one run if there is a selector; all runs of a name.

    Raises:
        LowerdeckError: nothing was recorded, nothing matches, a prefix matches several ids, or MLflow refuses.
    """
    with _experiment(config) as (store, experiment_id):
        if selector is None:
            return _search(store, experiment_id)
        return _selected(store, experiment_id, selector.strip(), config.experiment)


def sweeps_named(selector: str, runs: Sequence[RecordedRun]) -> list[str]:
    """The ids of the sweeps that `selector` names, out of the `runs` found for it."""
    found = {run.tags[SWEEP_ID_TAG]: run.tags.get(SWEEP_NAME_TAG) for run in runs if SWEEP_ID_TAG in run.tags}
    return [sweep for sweep, name in found.items() if name == selector or sweep.startswith(selector)]


def latest_sweep(config: TrackingConfig) -> str | None:
    """The id of the sweep with the most recent point; None if no sweep was recorded.

    Raises:
        LowerdeckError: nothing was recorded, or MLflow refuses.
    """
    with _experiment(config) as (store, experiment_id):
        latest = store.client.search_runs(
            [experiment_id], f"tags.`{SWEEP_ID_TAG}` LIKE '%'", max_results=1, order_by=["attributes.start_time DESC"]
        )
    return latest[0].data.tags[SWEEP_ID_TAG] if latest else None


def read_artifact(config: TrackingConfig, run_id: str, path: str) -> bytes:
    """The content of one file of a run, e.g. `plan.json`.

    Args:
        config: Where builds are recorded.
        run_id: The whole id.
        path: Relative to the run's files, with `/`.

    Raises:
        LowerdeckError: the run has no such file; lists those with similar names.
    """
    with opened(config) as store, extended_upload_timeout():
        files = _files_next_to(store, run_id, path)
        if path not in files:
            near, listed = components.did_you_mean(path, files, cutoff=0.5), ", ".join(sorted(files)) or "none there"
            raise LowerdeckError(f"the run {run_id} has no file {path!r}.{near} It has: {listed}")
        return _download(store, run_id, path)


def with_details(config: TrackingConfig, runs: Sequence[RecordedRun]) -> list[RecordedRun]:
    """The same runs, with the details of their builds among their tags.

    Raises:
        LowerdeckError: MLflow refuses, or a file is damaged.
    """
    lacking = [run for run in runs if not _has_details(run)]
    if not lacking:
        return list(runs)
    with opened(config) as store, extended_upload_timeout(), ThreadPoolExecutor(_MAX_CONNECTIONS) as pool:
        contents = pool.map(partial(_read_details, store.uri), lacking)
        found = {run.run_id: content for run, content in zip(lacking, contents, strict=True) if content is not None}
    return [
        replace(run, tags=_details_of(run, found[run.run_id]) | dict(run.tags)) if run.run_id in found else run
        for run in runs
    ]


def _read_details(uri: str, run: RecordedRun) -> bytes | None:
    """The details of a run; None if it has none. MLflow's client would look up the run first, which takes longer."""
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    files: Any = get_artifact_repository(run.artifact_uri, tracking_uri=uri)  # untyped
    if all(info.path != DETAILS for info in files.list_artifacts()):
        return None
    with tempfile.TemporaryDirectory() as temporary:
        return Path(files.download_artifacts(DETAILS, temporary)).read_bytes()


def _has_details(run: RecordedRun) -> bool:
    """Whether the details are tags already, as in versions before 0.2.0."""
    return "converter_version" in run.tags


def _details_of(run: RecordedRun, content: bytes) -> dict[str, str]:
    try:
        return {str(key): str(value) for key, value in json.loads(content)["texts"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise LowerdeckError(f"{DETAILS} of run {run.run_id[:12]} is damaged: {error!r}") from None


def read_folder(config: TrackingConfig, run_id: str, folder: str) -> dict[str, bytes]:
    """The content by path of the files in a folder of a run; empty if there is no such folder."""
    with opened(config) as store, extended_upload_timeout():
        names = sorted(_files_next_to(store, run_id, f"{folder}/"))
        return {name: _download(store, run_id, name) for name in names}


def read_artifacts(config: TrackingConfig, run_ids: Sequence[str], path: str) -> dict[str, bytes]:
    """The content of the same file of several runs, by run; runs without the file are left out.

    Raises:
        LowerdeckError: MLflow refuses.
    """
    if not run_ids:
        return {}
    with opened(config) as store, extended_upload_timeout():
        having = [run_id for run_id in run_ids if path in _files_next_to(store, run_id, path)]
        return {run_id: _download(store, run_id, path) for run_id in having}


def _files_next_to(store: TrackingStore, run_id: str, path: str) -> set[str]:
    """Paths of a run's files in the folder of `path`."""
    folder = path.rpartition("/")[0] or None
    return {info.path for info in store.client.list_artifacts(run_id, folder) if not info.is_dir}


def _download(store: TrackingStore, run_id: str, path: str) -> bytes:
    with tempfile.TemporaryDirectory() as temporary:
        return Path(store.client.download_artifacts(run_id, path, temporary)).read_bytes()


@contextmanager
def _experiment(config: TrackingConfig) -> Iterator[tuple[TrackingStore, str]]:
    """The opened store, and the experiment's id."""
    experiment_id = locate(config).experiment_id
    with opened(config) as store:
        yield store, experiment_id


def _selected(store: TrackingStore, experiment_id: str, selector: str, experiment: str) -> list[RecordedRun]:
    if '"' not in selector:
        for identifier in ("attributes.run_name", f"tags.`{SWEEP_NAME_TAG}`"):
            if selector and (found := _search(store, experiment_id, f'{identifier} = "{selector}"')):
                return found
    if _ID_PREFIX.fullmatch(selector) and (found := _by_id(store, experiment_id, selector)):
        return found
    if _COMPARES.search(selector):
        return _filtered(store, experiment_id, selector, experiment)
    raise LowerdeckError(_not_found_message(store, experiment_id, selector, experiment))


def _filtered(store: TrackingStore, experiment_id: str, selector: str, experiment: str) -> list[RecordedRun]:
    from mlflow.exceptions import MlflowException

    try:
        found = _search(store, experiment_id, selector)
    except MlflowException as error:
        if error.error_code != "INVALID_PARAMETER_VALUE":
            raise
        raise LowerdeckError(
            f"MLflow does not understand the filter {selector!r}: {error.message}\n"
            "    e.g. \"metrics.quantized_accuracy > 0.9 AND tags.target = 'xnnpack_cpu'\""
        ) from error
    if not found:
        raise LowerdeckError(f"no build in the experiment {experiment!r} matches the filter {selector!r}")
    return found


def _by_id(store: TrackingStore, experiment_id: str, prefix: str) -> list[RecordedRun]:
    """The run, or the points of the sweep, with an id that starts with `prefix`.

    Raises:
        LowerdeckError: several runs or sweeps have such an id.
    """
    runs = _search(store, experiment_id, f"attributes.run_id LIKE '{prefix}%'")
    points = _search(store, experiment_id, f"tags.`{SWEEP_ID_TAG}` LIKE '{prefix}%'")
    sweeps = {point.tags[SWEEP_ID_TAG] for point in points}
    if prefix in sweeps:
        return [point for point in points if point.tags[SWEEP_ID_TAG] == prefix]
    if len(runs) + len(sweeps) > 1:
        fits = [f"run {run.run_id} ({run.name})" for run in runs] + [f"sweep {sweep}" for sweep in sorted(sweeps)]
        listed = "\n  ".join(fits[:_MAX_LISTED])
        raise LowerdeckError(
            f"the ids of {len(fits)} runs or sweeps start with {prefix!r}; use more of it:\n  {listed}"
        )
    return runs or points


def _not_found_message(store: TrackingStore, experiment_id: str, selector: str, experiment: str) -> str:
    runs = _search(store, experiment_id)
    names = {run.name for run in runs} | {run.tags.get(SWEEP_NAME_TAG, "") for run in runs} - {""}
    sweeps = sorted({run.tags[SWEEP_ID_TAG] for run in runs if SWEEP_ID_TAG in run.tags})
    near = components.similar(selector, names | set(sweeps))
    lines = [
        f"no run or sweep in the experiment {experiment!r} of {redact_credentials(store.uri)} is called {selector!r}"
    ]
    lines += [f"    did you mean {near[0]!r}?"] if near else []
    lines += [f"    sweeps: {', '.join(sweeps[:_MAX_LISTED])}"] if sweeps else []
    lines += [f"    runs: {', '.join(sorted(names)[:_MAX_LISTED])}"] if names else []
    lines.append(
        f"    allowed: the name or id of a run or sweep, the start of an id ({MIN_PREFIX} characters or more), or a "
        'filter such as "metrics.quantized_accuracy > 0.9"'
    )
    return "\n".join(lines)


def _search(store: TrackingStore, experiment_id: str, filter_string: str = "") -> list[RecordedRun]:
    """Builds that MLflow finds, page by page, without other kinds of runs."""
    found: list[RecordedRun] = []
    token: str | None = None
    while True:
        # A page consists of some ten thousand live objects: garbage collection takes twice as long as reading them.
        with _without_garbage_collection():
            page = store.client.search_runs(
                [experiment_id],
                filter_string,
                max_results=_MAX_PER_PAGE,
                order_by=["attributes.start_time ASC"],
                page_token=token,
            )
            found += [_recorded(run, store.uri) for run in page if KIND_TAG not in run.data.tags]
        token = page.token
        if not token:
            return found


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
