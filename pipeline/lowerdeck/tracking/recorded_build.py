"""A build read back from its MLflow run, and checked: configuration, metrics and lineage."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lowerdeck.artifacts import paths
from lowerdeck.config.compare_section import compare_section
from lowerdeck.config.compose import compose
from lowerdeck.config.load import config_of, read_section
from lowerdeck.config.schema import CompareConfig, Config, TrackingConfig
from lowerdeck.contracts.errors import ConfigurationError, LowerdeckError
from lowerdeck.tracking.content import DEVICE_FILES
from lowerdeck.tracking.runs import find_runs, read_artifact, read_artifacts, with_details

if TYPE_CHECKING:
    from lowerdeck.tracking.recorded_run import RecordedRun

PARAMS = Path("params.yaml")
CONF = Path("conf")
_MAX_LISTED = 10


@dataclass(frozen=True, kw_only=True)
class RecordedBuild:
    """The configuration, metrics and lineage of a recorded build."""

    run: RecordedRun
    config: Config
    lineage: Mapping[str, Any]
    """Result of `lineage.trace`."""

    @property
    def links(self) -> dict[str, Mapping[str, Any]]:
        """The links of the lineage by name."""
        return {link["name"]: link for link in self.lineage["links"]}

    @property
    def program_sha256(self) -> str:
        """SHA-256 of the `.pte`, hexadecimal."""
        return str(self.links["program"]["sha256"])

    def __str__(self) -> str:
        return f"{self.run.name} ({self.run.run_id[:12]})"


def tracking_config() -> TrackingConfig:
    """The tracking section of build/config.yaml, or of params.yaml before the first build.

    Raises:
        ConfigurationError: the file cannot be read.
    """
    return read_section(paths.CONFIG, TrackingConfig) if paths.CONFIG.is_file() else compose(PARAMS, CONF).tracking


def compare_config() -> CompareConfig:
    """The section `compare` of params.yaml and conf/, as they are now: no build depends on it.

    Raises:
        ConfigurationError: the configuration is invalid.
    """
    return compare_section(PARAMS, CONF) if PARAMS.is_file() else CompareConfig()


def find_run(tracking: TrackingConfig, selector: str) -> RecordedRun:
    """The only run that `selector` names.

    Args:
        tracking: Where builds are recorded.
        selector: As for `find_runs`.

    Raises:
        LowerdeckError: it names no run, or several; lists them.
    """
    found = find_runs(tracking, selector=selector)
    if len(found) == 1:
        return found[0]
    listed = "\n".join(f"  {run.run_id[:12]}  {_described(run)}" for run in found[:_MAX_LISTED])
    more = f"\n  and {len(found) - _MAX_LISTED} more" if len(found) > _MAX_LISTED else ""
    raise LowerdeckError(
        f"{selector!r} names {len(found)} runs; name one of them by the start of its id:\n{listed}{more}"
    )


def _described(run: RecordedRun) -> str:
    overrides = run.tags.get("sweep.overrides")
    return f"{run.name}  {' '.join(json.loads(overrides))}" if overrides else run.name


def read(tracking: TrackingConfig, run: RecordedRun) -> RecordedBuild:
    """The build of `run`.

    Raises:
        LowerdeckError: it is incomplete, or a version of the project with other configuration keys recorded it.
    """
    (run,) = with_details(tracking, [run])
    lineage = read_json(tracking, run, paths.LINEAGE.name)
    text = read_artifact(tracking, run.run_id, paths.CONFIG.name).decode()
    try:
        config = config_of(text)
    except ConfigurationError as error:
        commit = run.tags.get("git.commit", "none")
        version = "" if commit == "none" else f", that of commit {commit[:12]}"
        raise LowerdeckError(
            f"run {run.run_id[:12]} was configured for another version of the project{version}, and its configuration "
            f"is not valid here:\n{error}"
        ) from None
    return RecordedBuild(run=run, config=config, lineage=lineage)


def read_json(tracking: TrackingConfig, run: RecordedRun, name: str) -> Any:
    """The JSON file `name` of a run.

    Raises:
        LowerdeckError: it is missing or damaged.
    """
    return _parsed(read_artifact(tracking, run.run_id, name), run, name)


def read_all_metrics(tracking: TrackingConfig, run: RecordedRun) -> dict[str, Any]:
    """The metrics of evaluate, and the metrics of the device where one was configured.

    Raises:
        LowerdeckError: a file is missing or damaged.
    """
    metrics: dict[str, Any] = read_json(tracking, run, paths.METRICS.name)
    name = f"{DEVICE_FILES}/{paths.DEVICE_METRICS.name}"
    for content in read_artifacts(tracking, [run.run_id], name).values():  # none without a device
        metrics |= _parsed(content, run, name)
    return metrics


def _parsed(content: bytes, run: RecordedRun, name: str) -> Any:
    try:
        return json.loads(content)
    except ValueError as error:
        raise LowerdeckError(f"{name} of run {run.run_id[:12]} is damaged: {error}") from None
