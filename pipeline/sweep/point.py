"""One point of a sweep: the task that Hydra's launchers run, in this process or as a pickle in another."""

from __future__ import annotations

import dataclasses
import functools
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.sweep import arguments
from pipeline.sweep.building import PointBuild, Shared
from pipeline.sweep.folder import Folder, PointRecord

if TYPE_CHECKING:
    from omegaconf import DictConfig


@dataclass(frozen=True)
class PointTask:
    """Hydra's task function: builds the point of the job that calls it.

    It raises nothing for a point that fails or cannot exist, so that every launcher goes on: the sweep's folder tells.
    """

    project: Path
    """Absolute path of the project."""
    folder: Path
    """Absolute path of the sweep's folder."""
    session: str
    """Which start of the sweep this is."""

    def __call__(self, config: DictConfig) -> float | tuple[float, ...] | None:
        """Build the point that Hydra's job names, and give its objectives; NaN where there are none to be had."""
        from hydra.core.hydra_config import HydraConfig

        job = HydraConfig.get()
        record = run_point(self.project, self.folder, self.session, int(job.job.num), list(job.overrides.task))
        figures = [_number(record.metrics.get(name)) for name in Folder(self.folder).read().objectives]
        if not figures:
            return None
        return tuple(figures) if len(figures) > 1 else figures[0]


def run_point(project: Path, folder: Path, session: str, number: int, overrides: Sequence[str]) -> PointRecord:
    """Build one point and record in the sweep's folder how it ended.

    Args:
        project: Folder of the project.
        folder: Folder of the sweep.
        session: Which start of the sweep this is.
        number: Of the point.
        overrides: Of the point, each with one value, in the form of `arguments.for_hydra`.

    Raises:
        LowerdeckError: the store or the sweep's folder cannot be used; no other point could be built either.
    """
    shared = shared_for(project, folder)
    shared.folder.note("point begins", point=number, session=session)
    started = time.perf_counter()
    params = arguments.as_params(shared.sweep.base, overrides)
    record = PointBuild(shared, number, arguments.as_typed(overrides), params, session).run()
    record = dataclasses.replace(record, seconds=round(time.perf_counter() - started, 3), session=session)
    shared.folder.record(record)
    shared.folder.note("point ends", point=number, session=session, status=record.status)
    return record


@functools.lru_cache(maxsize=1)
def shared_for(project: Path, folder: Path) -> Shared:
    """What points of the sweep in `folder` have in common in this process."""
    return Shared(project, Folder(folder))


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else math.nan
