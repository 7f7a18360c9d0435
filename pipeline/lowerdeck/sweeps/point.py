"""One point of a sweep: the task that Hydra's launchers run, in this process or as a pickle in another."""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import chdir, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.sweeps import arguments
from lowerdeck.sweeps.building import PointBuild
from lowerdeck.sweeps.folder import Folder, PointRecord
from lowerdeck.sweeps.state import SweepState

if TYPE_CHECKING:
    from omegaconf import DictConfig

_PARENT_CHECK_S = 0.5
BROKEN = "point breaks"
"""Event of a point after which no other can be built."""


@dataclass(frozen=True)
class PointTask:
    """Hydra's task function: builds the point of the job that calls it.

    A failed or invalid point raises nothing, so that every launcher continues; the sweep's folder has its record. An
    error that it does raise prevents all further points. It is also written to the journal, because some sweepers
    continue after it.
    """

    project: Path
    """Absolute path, like `folder`, that of the sweep's folder."""
    folder: Path
    session: str
    process: int
    """Process id of the sweep: a worker that it started ends with it."""

    def __call__(self, config: DictConfig) -> float | tuple[float, ...] | None:
        """Build the point of Hydra's job and return its objectives; None if one is missing.

        Optuna's sweeper counts None as a failed trial, and crashes on NaN.
        """
        from hydra.core.hydra_config import HydraConfig

        if os.getppid() == self.process:
            _end_with_parent(self.process)
        job = HydraConfig.get()
        number = int(job.job.num)
        try:
            with _outside_hydra():
                record = run_point(self.project, self.folder, self.session, number, list(job.overrides.task))
        except Exception as error:
            with suppress(OSError):  # the disk may be full
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

    `overrides`, each with one value, are in the form of `arguments.to_hydra_overrides`. If the sweep's own process runs
    the points, one is recorded while the next is built.

    Raises:
        LowerdeckError: the store or the sweep's folder cannot be used, so no other point can be built either.
    """
    shared = shared_for(project, folder)
    if shared.broken is not None:
        raise shared.broken
    with chdir(project):  # paths in the configuration are relative to it
        try:
            return _run_point(shared, session, number, overrides)
        except LowerdeckError as error:
            shared.broken = error
            raise


def _run_point(shared: SweepState, session: str, number: int, overrides: Sequence[str]) -> PointRecord:
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

    # What a search optimizes must be known before its next point.
    record = build.run(defers_device=shared.defers_devices and not shared.sweep.objectives)

    def measure() -> None:
        measured = build.measure(record)
        shared.defer(lambda: end(measured))

    shared.defer_device(measure)
    return record


@contextmanager
def _outside_hydra() -> Iterator[None]:
    """Let compose initialize Hydra, although Hydra is running points in the same process."""
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


@functools.cache
def _end_with_parent(parent: int) -> None:
    """End this worker soon after its parent, which may have been killed; stages end with the worker.

    A worker does not notice by itself before its point is built, and then waits for another one. Nothing is lost: what
    is finished is in the store, and written atomically.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_PARENT_CHECK_S)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@functools.lru_cache(maxsize=1)
def shared_for(project: Path, folder: Path) -> SweepState:
    """The state that points of the sweep in `folder` share in this process."""
    return SweepState(project, Folder(folder))


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else math.nan
