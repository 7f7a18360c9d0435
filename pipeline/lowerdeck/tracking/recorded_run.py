"""What MLflow has of a run, and conditions on runs, whoever reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

KIND_TAG = "lowerdeck.kind"
"""Tag of runs that are not builds, with their kind."""
SWEEP_ID_TAG, SWEEP_NAME_TAG = "sweep.id", "sweep.name"
NAME_TAG = "mlflow.runName"
"""MLflow's own tag with the name of a run."""


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
    lost: str = ""
    """Why `with_details` could not read its details; empty otherwise."""
    address: str = ""
    """Of its page."""


@dataclass(frozen=True, kw_only=True)
class Condition:
    """What a run must have: a tag with a value, or an id."""

    tag: str | None
    """Key of the tag; None for the run's id."""
    value: str
    """Without quotation marks."""
    is_prefix: bool = False
    """Whether `value` is the start of the tag or id, rather than all of it."""

    @property
    def mlflow_filter(self) -> str:
        """The same as a filter of MLflow."""
        name = "attributes.run_id" if self.tag is None else f"tags.`{self.tag}`"
        return f"{name} LIKE '{self.value}%'" if self.is_prefix else f'{name} = "{self.value}"'
