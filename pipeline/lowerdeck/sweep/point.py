"""One point of a sweep: the task that Hydra's launchers run, in this process or as a pickle in another."""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import chdir, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.sweep import arguments
from lowerdeck.sweep.building import PointBuild
from lowerdeck.sweep.folder import Folder, PointRecord
from lowerdeck.sweep.shared import Shared

if TYPE_CHECKING:
    from omegaconf import DictConfig

BROKEN = "point breaks"
"""Event of a point after which no other could be built."""


@dataclass(frozen=True)
class PointTask:
    """Hydra's task function: builds the point of the job that calls it.

    It raises nothing for a point that fails or cannot exist, so that every launcher goes on: the sweep's folder tells.
    What it does raise, no point could be built after; it is in the journal too, for sweepers that go on nevertheless.
    """

    project: Path
    """Absolute path of the project."""
    folder: Path
    """Absolute path of the sweep's folder."""
    session: str
    """Which start of the sweep this is."""

    def __call__(self, config: DictConfig) -> float | tuple[float, ...] | None:
        """Build the point that Hydra's job names, and give its objectives; None where it has not all of them.

        Optuna's sweeper takes None for a failed trial, and breaks on NaN.
        """
        from hydra.core.hydra_config import HydraConfig

        job = HydraConfig.get()
        number = int(job.job.num)
        try:
            with _outside_hydra():
                record = run_point(self.project, self.folder, self.session, number, list(job.overrides.task))
        except Exception as error:
            with suppress(OSError):  # a full disk takes no note
                Folder(self.folder).log_event(
                    BROKEN, point=number, session=self.session, error=str(error) or repr(error)
                )
            raise
        metrics = [_number(record.metrics.get(name)) for name in Folder(self.folder).read().objectives]
        if record.status != "built" or not metrics or any(math.isnan(metric) for metric in metrics):
            return None
        return tuple(metrics) if len(metrics) > 1 else metrics[0]


def run_point(project: Path, folder: Path, session: str, number: int, overrides: Sequence[str]) -> PointRecord:
    """Build one point, and record it in MLflow and in the sweep's folder.

    Where the sweep itself runs the points, one is recorded while the next is built.

    Args:
        project: Folder of the project.
        folder: Folder of the sweep.
        session: Which start of the sweep this is.
        number: Of the point.
        overrides: Of the point, each with one value, in the form of `arguments.to_hydra_overrides`.

    Raises:
        LowerdeckError: the store or the sweep's folder cannot be used; no other point could be built either.
    """
    shared = shared_for(project, folder)
    if shared.broken is not None:
        raise shared.broken
    with chdir(project):  # what configuration names counts from there
        try:
            return _run_point(shared, session, number, overrides)
        except LowerdeckError as error:
            shared.broken = error
            raise


def _run_point(shared: Shared, session: str, number: int, overrides: Sequence[str]) -> PointRecord:
    shared.check_disk_space()
    shared.folder.log_event("point begins", point=number, session=session, process=os.getpid())
    started = time.perf_counter()
    params = arguments.as_params(shared.sweep.base, overrides)
    build = PointBuild(shared, number, arguments.to_user_overrides(overrides), params, session)

    def end(record: PointRecord) -> None:
        record = build.track(record)
        record = dataclasses.replace(record, seconds=round(time.perf_counter() - started, 3), session=session)
        shared.folder.record(record)
        shared.folder.log_event("point ends", point=number, session=session, status=record.status)

    record = build.run()
    shared.defer(lambda: end(record))
    return record


@contextmanager
def _outside_hydra() -> Iterator[None]:
    """Let compose initialize Hydra, which refuses that while it runs the points of a sweep in the same process."""
    from hydra.core.global_hydra import GlobalHydra

    state = GlobalHydra.instance()
    running = state.hydra
    state.clear()
    try:
        yield
    finally:
        state.clear()
        if running is not None:
            state.initialize(running)


@functools.lru_cache(maxsize=1)
def shared_for(project: Path, folder: Path) -> Shared:
    """What points of the sweep in `folder` have in common in this process."""
    return Shared(project, Folder(folder))


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else math.nan
