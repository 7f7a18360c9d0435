"""State that the points of a sweep share in one process: the sweep's folder, its store, digests, and failures."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lowerdeck.config.choices import Chosen
from lowerdeck.config.schema import TrackingConfig
from lowerdeck.contracts.errors import ConfigurationError, LowerdeckError
from lowerdeck.fingerprints.digests import FILES, digest
from lowerdeck.sweeps import snapshot
from lowerdeck.sweeps.declaration import read_stages
from lowerdeck.sweeps.edge_programs import EdgeProgramCache
from lowerdeck.sweeps.folder import Folder
from lowerdeck.sweeps.store.result_store import ResultStore
from lowerdeck.tracking.store import database_identity

_MIN_FREE_BYTES = 1 << 20
_DATA_RECHECK_S = 1.0
"""Interval between checks of the files in data/; points whose stages are all shared take less time."""


class StageFailed(Exception):  # noqa: N818  ends a point, and is reported in its record
    """A stage failed, and so did its point."""

    def __init__(self, stage: str, log: Path, reason: str, workspace: Path | None) -> None:
        """`workspace` is where the stage reported an error; None if it was killed, or data changed while it ran."""
        super().__init__(reason)
        self.stage, self.log, self.reason, self.workspace = stage, log, reason, workspace


class SweepState:
    """State that the points of a sweep share in one process."""

    def __init__(self, project: Path, folder: Folder) -> None:
        """`folder` must have been written, with its copy of the project."""
        self.project, self.folder = project, folder
        self.sweep = folder.read()
        self.stages = {stage.name: stage for stage in read_stages(folder.project / "dvc.yaml")}
        self.producer_of = {output: stage for stage in self.stages.values() for output in stage.outputs}
        store = self.sweep.store
        self.store = ResultStore.open(store if "://" in store else str(project / store))
        self.edge_cache = EdgeProgramCache(self.store)
        self.failed: dict[str, StageFailed] = {}
        """Stages that failed in this process, by key: they would fail again."""
        self.refused: dict[str, ConfigurationError] = {}
        """Errors of invalid configurations, by key."""
        self.configured: dict[str, tuple[dict[str, Mapping[str, Any]], dict[str, str]]] = {}
        """Results of compose by key: values by file, and SHA-256 by file."""
        self.chosen: Chosen = {}
        """Cache of composed options."""
        self.broken: LowerdeckError | None = None
        """Why no other point can be built."""
        self.defer: Callable[[Callable[[], None]], object] = lambda end: end()
        """Runs the end of a point, after its stages: immediately, or in the background."""
        self.defer_device: Callable[[Callable[[], None]], object] = lambda measure: measure()
        """Runs what waits for a device, likewise."""
        self.defers_devices = False
        """Whether `defer_device` is in the background, so that points are built while others wait for a device."""
        self._digests: dict[str, str] = {}
        self._data_checked_s = -math.inf
        self._databases: dict[TrackingConfig, str] = {}

    def source_digest(self, path: str) -> str:
        """Digest of code and configuration in the sweep's copy, or of data as it is now or was a moment ago."""
        if time.monotonic() - self._data_checked_s > _DATA_RECHECK_S:
            self._refresh_data_digests()
        if path not in self._digests:
            self._digests[path] = FILES.digest(self.folder.project / path)
        return self._digests[path]

    def _refresh_data_digests(self) -> None:
        for path in snapshot.data_sources_of(self.stages.values()):
            self._digests[path] = FILES.digest(self.project / path)
        self._data_checked_s = time.monotonic()

    def data_digest(self, *, refresh: bool = False) -> str:
        """Digest of all data that stages depend on; `refresh` checks the files again."""
        if refresh:
            self._refresh_data_digests()
        return digest({path: self.source_digest(path) for path in snapshot.data_sources_of(self.stages.values())})

    def check_disk_space(self) -> None:
        """Raise LowerdeckError if the disk is full, so that no other point can be built."""
        if shutil.disk_usage(self.folder.path).free < _MIN_FREE_BYTES:
            raise LowerdeckError(f"the disk of {self.folder.path} is full; free some and start the same sweep again")

    def tracking_identity(self, config: Mapping[str, Any]) -> str:
        """Identity of the point's MLflow database: in a new one it is recorded again."""
        tracking = TrackingConfig(**config["tracking"])
        if not tracking.enabled:
            return ""
        if tracking not in self._databases:
            self._databases[tracking] = database_identity(tracking)
        return self._databases[tracking]
