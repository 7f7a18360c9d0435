"""Searches recorded builds by id, name, sweep or MLflow filter."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.registry import components
from lowerdeck.tracking.address import redact_credentials
from lowerdeck.tracking.content import DETAILS
from lowerdeck.tracking.reader import Reader, reading
from lowerdeck.tracking.recorded_run import NAME_TAG, SWEEP_ID_TAG, SWEEP_NAME_TAG, Condition, RecordedRun
from lowerdeck.tracking.ui import locate

if TYPE_CHECKING:
    from lowerdeck.config.schema import TrackingConfig

MIN_PREFIX = 4
"""Least number of characters of an abbreviated id."""
_MAX_LISTED = 8
_RECOVERY = "bring the folder back, or build it again, which records it again"
_COMPARES = re.compile(r"[=<>]|\b(I?LIKE|IN|IS)\b")
"""Matches MLflow filters but no names of runs or sweeps."""
_ID_PREFIX = re.compile(rf"[0-9a-f]{{{MIN_PREFIX},32}}")


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
    with _experiment(config) as (reader, experiment_id):
        if selector is None:
            return reader.search(experiment_id)
        return _selected(reader, experiment_id, selector.strip())


def sweeps_named(selector: str, runs: Sequence[RecordedRun]) -> list[str]:
    """The ids of the sweeps that `selector` names, out of the `runs` found for it."""
    found = {run.tags[SWEEP_ID_TAG]: run.tags.get(SWEEP_NAME_TAG) for run in runs if SWEEP_ID_TAG in run.tags}
    return [sweep for sweep, name in found.items() if name == selector or sweep.startswith(selector)]


def latest_sweep(config: TrackingConfig) -> str | None:
    """The id of the sweep with the most recent point; None if no sweep was recorded.

    Raises:
        LowerdeckError: nothing was recorded, or MLflow refuses.
    """
    with _experiment(config) as (reader, experiment_id):
        return reader.latest_tag(experiment_id, SWEEP_ID_TAG)


def read_artifact(config: TrackingConfig, run_id: str, path: str) -> bytes:
    """The content of one file of a run, e.g. `plan.json`.

    Args:
        config: Where builds are recorded.
        run_id: The whole id.
        path: Relative to the run's files, with `/`.

    Raises:
        LowerdeckError: the run has no such file; lists those with similar names.
    """
    with reading(config) as reader:
        files = _files_next_to(reader, run_id, path)
        if path not in files:
            near, listed = components.did_you_mean(path, files, cutoff=0.5), ", ".join(sorted(files)) or "none there"
            raise LowerdeckError(f"the run {run_id} has no file {path!r}.{near} It has: {listed}")
        return reader.content(run_id, path)


def with_details(config: TrackingConfig, runs: Sequence[RecordedRun]) -> list[RecordedRun]:
    """The same runs, with the details of their builds among their tags, or why they are lost.

    Raises:
        LowerdeckError: MLflow refuses.
    """
    lacking = [run for run in runs if not _has_details(run)]
    if not lacking:
        return list(runs)
    with reading(config) as reader:
        found = reader.contents(lacking, DETAILS)
    ids = {run.run_id for run in lacking}
    return [_with_details(run, found.get(run.run_id)) if run.run_id in ids else run for run in runs]


def _has_details(run: RecordedRun) -> bool:
    """Whether the details are tags already, as in versions before 0.2.0."""
    return "converter_version" in run.tags


def _with_details(run: RecordedRun, content: bytes | None) -> RecordedRun:
    if content is None and run.status != "FINISHED":
        return run  # they are written last
    try:
        texts = {} if content is None else {key: str(text) for key, text in json.loads(content)["texts"].items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        content, texts = None, {}
    lost = "" if content is not None else f"{DETAILS} is missing or damaged in {run.artifact_uri}; {_RECOVERY}"
    return replace(run, tags=texts | dict(run.tags), lost=lost)


def read_folder(config: TrackingConfig, run_id: str, folder: str) -> dict[str, bytes]:
    """The content by path of the files in a folder of a run; empty if there is no such folder."""
    with reading(config) as reader:
        return {name: reader.content(run_id, name) for name in sorted(reader.files(run_id, folder))}


def read_artifacts(config: TrackingConfig, run_ids: Sequence[str], path: str) -> dict[str, bytes]:
    """The content of the same file of several runs, by run; runs without the file are left out.

    Raises:
        LowerdeckError: MLflow refuses.
    """
    if not run_ids:
        return {}
    with reading(config) as reader:
        having = [run_id for run_id in run_ids if path in _files_next_to(reader, run_id, path)]
        return {run_id: reader.content(run_id, path) for run_id in having}


def _files_next_to(reader: Reader, run_id: str, path: str) -> set[str]:
    """Paths of a run's files in the folder of `path`."""
    return reader.files(run_id, path.rpartition("/")[0] or None)


@contextmanager
def _experiment(config: TrackingConfig) -> Iterator[tuple[Reader, str]]:
    """What reads the runs, and the experiment's id."""
    experiment_id = locate(config).experiment_id
    with reading(config) as reader:
        yield reader, experiment_id


def _selected(reader: Reader, experiment_id: str, selector: str) -> list[RecordedRun]:
    if '"' not in selector:
        for tag in (NAME_TAG, SWEEP_NAME_TAG):
            if selector and (found := reader.search(experiment_id, Condition(tag=tag, value=selector))):
                return found
    if _ID_PREFIX.fullmatch(selector) and (found := _by_id(reader, experiment_id, selector)):
        return found
    if _COMPARES.search(selector):
        return _filtered(reader, experiment_id, selector)
    raise LowerdeckError(_not_found_message(reader, experiment_id, selector))


def _filtered(reader: Reader, experiment_id: str, selector: str) -> list[RecordedRun]:
    from mlflow.exceptions import MlflowException

    try:
        found = reader.search_by_mlflow(experiment_id, selector)
    except MlflowException as error:
        if error.error_code != "INVALID_PARAMETER_VALUE":
            raise
        raise LowerdeckError(
            f"MLflow does not understand the filter {selector!r}: {error.message}\n"
            "    e.g. \"metrics.quantized_accuracy > 0.9 AND tags.target = 'xnnpack_cpu'\""
        ) from error
    if not found:
        raise LowerdeckError(f"no build in the experiment {reader.config.experiment!r} matches the filter {selector!r}")
    return found


def _by_id(reader: Reader, experiment_id: str, prefix: str) -> list[RecordedRun]:
    """The run, or the points of the sweep, with an id that starts with `prefix`.

    Raises:
        LowerdeckError: several runs or sweeps have such an id.
    """
    runs = reader.search(experiment_id, Condition(tag=None, value=prefix, is_prefix=True))
    points = reader.search(experiment_id, Condition(tag=SWEEP_ID_TAG, value=prefix, is_prefix=True))
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


def _not_found_message(reader: Reader, experiment_id: str, selector: str) -> str:
    runs = reader.search(experiment_id)
    names = {run.name for run in runs} | {run.tags.get(SWEEP_NAME_TAG, "") for run in runs} - {""}
    sweeps = sorted({run.tags[SWEEP_ID_TAG] for run in runs if SWEEP_ID_TAG in run.tags})
    near = components.similar(selector, names | set(sweeps))
    place = f"the experiment {reader.config.experiment!r} of {redact_credentials(reader.uri)}"
    lines = [f"no run or sweep in {place} is called {selector!r}"]
    lines += [f"    did you mean {near[0]!r}?"] if near else []
    lines += [f"    sweeps: {', '.join(sweeps[:_MAX_LISTED])}"] if sweeps else []
    lines += [f"    runs: {', '.join(sorted(names)[:_MAX_LISTED])}"] if names else []
    lines.append(
        f"    allowed: the name or id of a run or sweep, the start of an id ({MIN_PREFIX} characters or more), or a "
        'filter such as "metrics.quantized_accuracy > 0.9"'
    )
    return "\n".join(lines)
