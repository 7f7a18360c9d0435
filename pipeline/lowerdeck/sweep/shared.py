"""What the points of a sweep have in common in one process: the sweep's folder, its store, digests, and what failed."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lowerdeck.config.compose import Chosen
from lowerdeck.config.schema import TrackingConfig
from lowerdeck.contracts.errors import ConfigurationError, LowerdeckError
from lowerdeck.fingerprints.digests import FILES, digest
from lowerdeck.sweep import snapshot
from lowerdeck.sweep.declaration import read_stages
from lowerdeck.sweep.edge_programs import EdgeProgramCache
from lowerdeck.sweep.folder import Folder
from lowerdeck.sweep.store.result_store import Store
from lowerdeck.tracking.store import database_identity

_MIN_FREE_BYTES = 1 << 20
_DATA_RECHECK_S = 1.0
"""How long files in data/ are not looked at again: points that are wholly shared take less."""


class StageFailed(Exception):  # noqa: N818  the end of a point, that its record tells
    """A stage failed, and with it its point."""

    def __init__(self, stage: str, log: Path, reason: str, workspace: Path | None) -> None:
        """`workspace` is the folder in which it ran and said no; None where it was ended, or data changed under it."""
        super().__init__(reason)
        self.stage, self.log, self.reason, self.workspace = stage, log, reason, workspace


class Shared:
    """What the points of a sweep have in common in one process."""

    def __init__(self, project: Path, folder: Folder) -> None:
        """`folder` has been written, with its copy of the project."""
        self.project, self.folder = project, folder
        self.sweep = folder.read()
        self.stages = {stage.name: stage for stage in read_stages(folder.project / "dvc.yaml")}
        self.producer_of = {output: stage for stage in self.stages.values() for output in stage.outputs}
        self.store = Store.open(self.sweep.store)
        self.edge_cache = EdgeProgramCache(self.store)
        self.failed: dict[str, StageFailed] = {}
        """Stages that failed in this process, by key: they would fail again."""
        self.refused: dict[str, ConfigurationError] = {}
        """Configurations that cannot exist, likewise."""
        self.configured: dict[str, tuple[dict[str, Mapping[str, Any]], dict[str, str]]] = {}
        """What compose made, by its key: values by file, and SHA-256 by file."""
        self.chosen: Chosen = {}
        """What Hydra made of the options that points choose."""
        self.broken: LowerdeckError | None = None
        """Why no other point can be built."""
        self.defer: Callable[[Callable[[], None]], object] = lambda end: end()
        """Gets what is left to do when the stages of a point have run, to do it at once or beside the next point."""
        self._digests: dict[str, str] = {}
        self._data_checked_s = -math.inf
        self._databases: dict[TrackingConfig, str] = {}

    def source_digest(self, path: str) -> str:
        """Of code and configuration by the sweep's copy, of data as it is now, or was a moment ago."""
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
        """Of all data that stages name; `refresh` looks at the files again."""
        if refresh:
            self._refresh_data_digests()
        return digest({path: self.source_digest(path) for path in snapshot.data_sources_of(self.stages.values())})

    def check_disk_space(self) -> None:
        """End the sweep where the disk is full: no other point could be built either.

        Raises:
            LowerdeckError: it is.
        """
        if shutil.disk_usage(self.folder.path).free < _MIN_FREE_BYTES:
            raise LowerdeckError(f"the disk of {self.folder.path} is full; free some and start the same sweep again")

    def tracking_identity(self, config: Mapping[str, Any]) -> str:
        """What tells the MLflow database of a point from one that takes its place: there it is recorded again."""
        tracking = TrackingConfig(**config["tracking"])
        if not tracking.enabled:
            return ""
        if tracking not in self._databases:
            self._databases[tracking] = database_identity(tracking)
        return self._databases[tracking]
