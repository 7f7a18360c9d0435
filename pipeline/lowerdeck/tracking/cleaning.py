"""Old runs of a local MLflow database that are neither promoted nor registered nor named."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.execution.cleaning import Removable, Removables, is_inside, size_of
from lowerdeck.tracking.address import database_file, tracking_uri
from lowerdeck.tracking.content import is_given_name
from lowerdeck.tracking.recorded_run import SWEEP_ID_TAG, SWEEP_NAME_TAG, RecordedRun
from lowerdeck.tracking.runs import find_runs
from lowerdeck.tracking.store import BUILD_KEY_TAG, find_experiment, opened

if TYPE_CHECKING:
    from lowerdeck.config.schema import TrackingConfig

PROMOTED_TAG = "lowerdeck.promoted"
"""Tag of runs that `lowerdeck promote` has promoted."""
_MAX_PER_CALL = 100


@dataclass(frozen=True, kw_only=True)
class OldRuns:
    """What can be removed, and what stays."""

    removables: Removables
    kept_sweeps: frozenset[str]
    """Ids of sweeps with a run that stays because it is promoted, registered or named."""


def old_runs(config: TrackingConfig, project: Path, before: float, committed: Collection[str]) -> OldRuns:
    """Runs that started before `before`.

    Args:
        config: Where builds are recorded. A server, or a database outside of the project, is left alone.
        project: The project.
        before: Seconds since 1970.
        committed: Build keys of the builds that are in the workspace or in git: these are promoted.
    """
    nothing = OldRuns(removables=Removables(kind="run"), kept_sweeps=frozenset())
    database = database_file(tracking_uri(config))
    if database is None or not database.is_file() or not is_inside(project, database):
        return nothing
    with opened(config) as store:
        if find_experiment(store, config.experiment) is None:
            return nothing
        registered = _registered(store.client)
    runs = find_runs(config, selector=None)
    kept = {run.run_id for run in runs if _is_kept(run, registered, committed)}
    old = [
        run
        for run in runs
        if run.run_id not in kept and run.start_time_ms < 1000 * before and is_inside(project, _files_of(run))
    ]
    sweeps = frozenset(run.tags[SWEEP_ID_TAG] for run in runs if run.run_id in kept and SWEEP_ID_TAG in run.tags)
    removables = Removables(
        kind="run", items=[_row(run) for run in old], remove=lambda: remove_runs(config, [run.run_id for run in old])
    )
    return OldRuns(removables=removables, kept_sweeps=sweeps)


def mark_promoted(config: TrackingConfig, run_id: str) -> None:
    """Tag a run as promoted, so that it is never removed as an old one.

    Raises:
        LowerdeckError: MLflow cannot be reached or refuses.
    """
    with opened(config) as store:
        store.client.set_tag(run_id, PROMOTED_TAG, "true")


def remove_runs(config: TrackingConfig, run_ids: Sequence[str]) -> None:
    """Remove runs from a local database for good, with their files.

    Raises:
        LowerdeckError: MLflow refuses.
    """
    with opened(config) as store:
        for run_id in run_ids:
            outputs = store.client.get_run(run_id).outputs
            for output in outputs.model_outputs if outputs is not None else ():
                store.client.delete_logged_model(output.model_id)
            store.client.delete_run(run_id)
    for start in range(0, len(run_ids), _MAX_PER_CALL):
        some = ",".join(run_ids[start : start + _MAX_PER_CALL])
        uri = tracking_uri(config)
        command = [sys.executable, "-P", "-m", "mlflow", "gc", "--backend-store-uri", uri, "--tracking-uri", uri]
        done = subprocess.run([*command, "--run-ids", some], capture_output=True, text=True, check=False)
        if done.returncode:
            raise LowerdeckError(f"`mlflow gc` failed: {done.stderr.strip()[-500:]}")


def _registered(client: Any) -> set[str]:
    """Ids of the runs that versions of registered models refer to."""
    found: set[str] = set()
    token: str | None = None
    while True:
        page = client.search_model_versions(max_results=1000, page_token=token)
        found |= {version.run_id for version in page if version.run_id}
        token = page.token
        if not token:
            return found


def _is_kept(run: RecordedRun, registered: Collection[str], committed: Collection[str]) -> bool:
    is_promoted = PROMOTED_TAG in run.tags or run.tags.get(BUILD_KEY_TAG) in committed
    is_named = bool(run.tags.get(SWEEP_NAME_TAG)) or not is_given_name(run.name, run.params, run.tags)
    return is_promoted or is_named or run.run_id in registered


def _files_of(run: RecordedRun) -> Path:
    parts = urlsplit(run.artifact_uri)
    return Path(unquote(parts.path)) if parts.scheme in ("", "file") else Path("/")


def _row(run: RecordedRun) -> Removable:
    return Removable(
        what=f"{run.run_id[:12]} {run.name}",
        size_bytes=size_of(_files_of(run)),
        last_used=run.start_time_ms / 1000,
    )
