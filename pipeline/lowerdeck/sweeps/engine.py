"""Prepares, resumes and runs sweeps, and summarizes them."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from lowerdeck.artifacts.files import write_json
from lowerdeck.config.choices import read_params
from lowerdeck.contracts.errors import ConfigurationError, LowerdeckError
from lowerdeck.execution.environment import searching_environment
from lowerdeck.execution.hidden_modules import check_root
from lowerdeck.fingerprints.closures import Sources
from lowerdeck.fingerprints.digests import FILES, digest
from lowerdeck.fingerprints.versions import tool_versions
from lowerdeck.formats.regular_files import check_tree
from lowerdeck.sweeps import arguments, hydra_multirun, search, snapshot, warm
from lowerdeck.sweeps.building import PointBuild
from lowerdeck.sweeps.declaration import Stage, read_stages
from lowerdeck.sweeps.folder import Folder, PointRecord, Sweep
from lowerdeck.sweeps.point import BROKEN, PointTask, shared_for
from lowerdeck.sweeps.state import SweepState

DEFAULT_STORE = snapshot.SWEEPS / "store"
STORE_VARIABLE = "LOWERDECK_STORE"
"""Environment variable with the location of the store, used if no option names one."""
_ID_CHARACTERS = 10
_MAX_WAITING = 16
"""Most points that use devices, or wait for one, at once."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prepared:
    """A sweep that is ready to run."""

    folder: Folder
    sweep: Sweep
    given: list[str]
    """Overrides for Hydra, including its own settings."""
    points: list[list[str]] | None
    """Overrides of every point; None if a sweeper chooses them while it runs."""


def prepare(project: Path, typed: Sequence[str], store: str | None) -> Prepared:
    """Copy the project for the sweep and compose its points.

    Raises:
        LowerdeckError: `project` is not a project, or hides a module from the stages; an override is invalid for every
            point, or no point can be built.
    """
    for name in snapshot.ALWAYS:
        if not (project / name).is_file():
            raise LowerdeckError(f"{project / name} is missing: run this in the folder of the project")
    check_root(project)
    typed = arguments.without_globs(typed, project / snapshot.CONF)
    given = arguments.to_hydra_overrides(typed)
    stages = read_stages(project / "dvc.yaml")
    for source in sorted({source for stage in stages for source in stage.sources}):
        check_tree(project / source)
    _make_data(project, stages)
    copy = snapshot.take(project, snapshot.copied_entries(stages))
    try:
        sweep, experiment = _sweep(project, copy, typed, store)
        folder = Folder(project / snapshot.SWEEPS / sweep.id)
        snapshot.keep(copy, folder.project)
    finally:
        shutil.rmtree(copy, ignore_errors=True)
    params = read_params(folder.project / "params.yaml")
    hydra_multirun.write_configuration(folder.hydra, params, sweep.name, experiment)
    folder.write(sweep)
    try:
        return _prepare_points(project, folder, given)
    except LowerdeckError:
        forget_unless_begun(folder)
        raise


def forget_unless_begun(folder: Folder) -> None:
    """Remove a sweep that was refused, which `--resume` would take for the newest one."""
    if not folder.journal.exists():
        shutil.rmtree(folder.path, ignore_errors=True)


def resume(project: Path, sweep_id: str, typed: Sequence[str]) -> Prepared:
    """The sweep whose id begins with `sweep_id` (empty: the newest), with its original copy of code and configuration.

    `typed` may only override Hydra's own settings, such as the launcher.

    Raises:
        LowerdeckError: there is no such sweep, or it cannot continue.
    """
    folder = Folder(_find_sweep(project, sweep_id))
    sweep = folder.read()
    if others := _without_hydras(typed):
        raise LowerdeckError(f"a resumed sweep keeps its overrides; {others[0]} would make it a different sweep")
    stages = read_stages(folder.project / "dvc.yaml")
    for entry in snapshot.copied_entries(stages):
        if entry.startswith("pipeline") and FILES.digest(project / entry) != FILES.digest(folder.project / entry):
            raise LowerdeckError(
                f"{entry}/ has changed since sweep {sweep.id} was started; start the same sweep again, and it reuses "
                "what is still valid"
            )
    return _prepare_points(project, folder, [*sweep.arguments, *typed])


def run(prepared: Prepared, project: Path, session: str) -> list[PointRecord]:
    """Run all points; returns the records of this session in order of the points.

    Raises:
        LowerdeckError: the sweep cannot continue.
    """
    task = PointTask(project.absolute(), prepared.folder.path.absolute(), session, os.getpid())
    try:
        with _exclusive(prepared.folder), _recording_in_background(shared_for(task.project, task.folder)):
            hydra_multirun.multirun(prepared.folder.hydra, task, prepared.given)
    except hydra_multirun.RejectedError:
        forget_unless_begun(prepared.folder)
        raise
    except ValueError:
        # Optuna's sweeper raises this when no trial succeeded; the checks below report why.
        if not prepared.sweep.searches or search.has_metrics(prepared.sweep, prepared.folder.records(), session):
            raise
    finally:
        records = [record for record in prepared.folder.records() if record.session == session]
        if prepared.folder.path.exists():
            with suppress(OSError):  # a full disk was already reported
                write_json(prepared.folder.summary, summarize(prepared, records, session))
    # Optuna's sweeper treats any error in a point as a failed trial.
    broken = [event for event in prepared.folder.events() if event["event"] == BROKEN and event["session"] == session]
    if broken:
        raise LowerdeckError(f"the sweep cannot continue: {broken[0]['error']}")
    search.check_objectives_measured(prepared.sweep, records)
    return records


@contextmanager
def _exclusive(folder: Folder) -> Iterator[None]:
    """Prevent two processes from running the same sweep, and remove leftovers of an earlier session."""
    from filelock import FileLock, Timeout

    folder.work.mkdir(exist_ok=True)
    try:
        lock = FileLock(folder.path / ".lock", timeout=0).acquire()
    except Timeout:
        raise LowerdeckError(f"sweep {folder.path.name} is being run by another process") from None
    with lock:
        for leftover in folder.work.iterdir():
            shutil.rmtree(leftover, ignore_errors=True)
        yield
        for session in folder.work.iterdir():
            with suppress(OSError):  # it contains failed points
                session.rmdir()


@contextmanager
def _recording_in_background(shared: SweepState) -> Iterator[None]:
    """Record and measure points of this process while others are built, and wait for all at the end of the block."""
    pending: list[Future[None]] = []
    measuring: list[Future[None]] = []
    recorder = ThreadPoolExecutor(1, thread_name_prefix="recorder")
    devices = ThreadPoolExecutor(_MAX_WAITING, thread_name_prefix="device")
    shared.defer = lambda end: pending.append(recorder.submit(end))
    shared.defer_device = lambda measure: measuring.append(devices.submit(measure))
    shared.defers_devices = True
    try:
        yield
        for future in (*measuring, *pending):
            future.result()
        for future in pending:  # measurements have added theirs meanwhile
            future.result()
    finally:
        devices.shutdown(cancel_futures=True)
        recorder.shutdown(cancel_futures=True)


def summarize(prepared: Prepared, records: Sequence[PointRecord], session: str) -> dict[str, Any]:
    """The content of summary.json: results of a session, and how often each stage was actually executed."""
    events = [event for event in prepared.folder.events() if event["event"] == "stage begins"]
    runs = Counter(event["stage"] for event in events if event["session"] == session)

    def listed(status: str, *fields: str) -> list[dict[str, Any]]:
        return [{name: getattr(record, name) for name in fields} for record in records if record.status == status]

    return {
        "id": prepared.sweep.id,
        "name": prepared.sweep.name,
        "overrides": prepared.sweep.typed,
        "num_points": len(prepared.points) if prepared.points is not None else len(records),
        "points": dict(Counter(record.status for record in records)),
        "stage_runs": dict(runs),
        "stage_runs_of_all_starts": dict(Counter(event["stage"] for event in events)),
        "seconds": round(sum(record.seconds for record in records), 3),
        "failures": listed("failed", "point", "overrides", "log", "reason"),
        "skipped": listed("skipped", "point", "overrides", "reason"),
    }


def _find_sweep(project: Path, sweep_id: str) -> Path:
    sweeps = project / snapshot.SWEEPS
    found = sorted(sweeps.glob("*/sweep.json"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise LowerdeckError(f"there is no sweep in {sweeps}/ yet")
    if not sweep_id:
        return found[-1].parent
    matching = [path.parent for path in found if path.parent.name.startswith(sweep_id)]
    if len(matching) != 1:
        names = ", ".join(path.parent.name for path in found)
        raise LowerdeckError(f"{len(matching) or 'no'} sweeps begin with {sweep_id!r}; there are: {names}")
    return matching[0]


def _without_hydras(overrides: Sequence[str]) -> list[str]:
    """`overrides` without those of Hydra's own settings."""
    return [text for text in overrides if not _key(text).startswith("hydra")]


def _key(override: str) -> str:
    return override.lstrip("+~").partition("=")[0]


def _sweep(project: Path, copy: Path, typed: Sequence[str], store: str | None) -> tuple[Sweep, dict[str, Any]]:
    """The sweep that `typed` describes on `copy`, and the named sweep that it is based on."""
    name, experiment = hydra_multirun.read_experiment(copy / "conf", typed)
    params = read_params(copy / "params.yaml")
    base = hydra_multirun.basis(params, experiment)
    own = _without_hydras(typed)  # another launcher is still the same sweep
    searched = [text for text in typed if _key(text).startswith(("hydra/sweeper", "hydra.sweeper"))]
    plugins = map(str, params["plugins"]) if isinstance(params.get("plugins"), list) else ()
    tops = {prefix.partition(".")[0] for prefix in plugins}
    versions = tool_versions(tops - Sources.of_workspace(copy, sorted(tops)).roots.keys())
    sources = snapshot.data_sources_of(read_stages(copy / "dvc.yaml"))
    data = {source: FILES.digest(project / source) for source in sources}
    return Sweep(
        id=digest([own, searched, FILES.digest(copy), data, versions])[:_ID_CHARACTERS],
        name=name,
        typed=list(typed),
        arguments=arguments.to_hydra_overrides([*own, *searched]),
        swept=hydra_multirun.sweeper_arguments(experiment),
        searches=hydra_multirun.searches(experiment, typed),
        base=base,
        objectives=arguments.objectives(typed, experiment),
        store=_within(project, store_location(project, store)),
        versions=versions,
    ), experiment


def store_location(project: Path, store: str | None = None) -> str:
    """Where results of sweeps are: in `store`, where an environment variable says, or in the project."""
    location = store or os.environ.get(STORE_VARIABLE) or str(project / DEFAULT_STORE)
    return location if "://" in location else str(Path(location).expanduser().absolute())


def _within(project: Path, location: str) -> str:
    """`location` relative to `project` where it is below, so that a sweep goes on after the project was moved."""
    below = "://" not in location and Path(location).is_relative_to(project.absolute())
    return Path(location).relative_to(project.absolute()).as_posix() if below else location


def _prepare_points(project: Path, folder: Folder, given: Sequence[str]) -> Prepared:
    """The sweep of `folder`, after composing every known point.

    Raises:
        ConfigurationError: a value is invalid for every point, or no point can be built.
    """
    sweep = folder.read()
    search.check_has_objectives(sweep)
    overrides = [*sweep.swept, *_without_hydras(given)]
    points = arguments.sample_points(overrides) if sweep.searches else arguments.points(overrides)
    shared_for.cache_clear()  # in a notebook, code beside the workspace may have changed since the same sweep before
    shared = shared_for(project.absolute(), folder.path.absolute())
    refused: dict[int, ConfigurationError] = {}
    for number, overrides in enumerate(points):
        params = arguments.as_params(sweep.base, overrides)
        try:
            new = PointBuild(shared, number, arguments.to_user_overrides(overrides), params).configure()
            if new and hydra_multirun.runs_in_process(given):
                warm.start_in_background(folder.project)  # imports libraries while the other points are composed
        except ConfigurationError as error:
            refused[number] = error
    _raise_invalid_values(points, refused)
    if len(refused) == len(points):
        raise ConfigurationError(f"no point of this sweep can be built; the first:\n{refused[0]}")
    return Prepared(folder=folder, sweep=sweep, given=list(given), points=None if sweep.searches else points)


def _raise_invalid_values(points: Sequence[Sequence[str]], refused: Mapping[int, ConfigurationError]) -> None:
    """Raise the error of a value that is invalid in every point that has it: a mistake, not a missing combination."""
    points_with: dict[str, list[int]] = {}
    for number, overrides in enumerate(points):
        for text in arguments.to_user_overrides(overrides):
            points_with.setdefault(text, []).append(number)
    for text, numbers in points_with.items():
        key = text.partition("=")[0]
        errors = [refused[number] for number in numbers if number in refused]
        if len(errors) == len(numbers) and all(
            any(_concerns(invalid, key) for invalid in error.invalid_keys) for error in errors
        ):
            raise ConfigurationError(f"{text} is invalid for every point of this sweep, nothing was run.\n{errors[0]}")


def _concerns(invalid: str, key: str) -> bool:
    """Whether a problem at the key `invalid` is caused by the value of `key`; for a group, only at its exact name."""
    invalid = invalid.removeprefix("overrides.")
    return invalid == key or ("." in key and (invalid.startswith(f"{key}.") or key.startswith(f"{invalid}.")))


def _make_data(project: Path, stages: Sequence[Stage]) -> None:
    """Make missing data that stages depend on, as `dvc repro` would."""
    missing = [path for path in snapshot.data_sources_of(stages) if not (project / path).exists()]
    command = [sys.executable, "-P", "-m", "dvc", "repro", "--quiet", "data/dvc.yaml"]
    if missing and subprocess.run(command, cwd=project, env=searching_environment(), check=False).returncode:
        raise LowerdeckError(f"{', '.join(missing)} cannot be made; `dvc repro data/dvc.yaml` shows why")
