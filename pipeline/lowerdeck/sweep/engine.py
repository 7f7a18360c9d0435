"""A sweep from what was typed to its summary."""

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
from lowerdeck.config.compose import read_params
from lowerdeck.contracts.errors import ConfigurationError, LowerdeckError
from lowerdeck.fingerprints.digests import FILES, digest
from lowerdeck.fingerprints.versions import tool_versions
from lowerdeck.sweep import arguments, hydra_multirun, search, snapshot, warm
from lowerdeck.sweep.building import PointBuild
from lowerdeck.sweep.declaration import Stage, read_stages
from lowerdeck.sweep.folder import Folder, PointRecord, Sweep
from lowerdeck.sweep.point import BROKEN, PointTask, shared_for
from lowerdeck.sweep.shared import Shared

DEFAULT_STORE = snapshot.SWEEPS / "store"
STORE_VARIABLE = "LOWERDECK_STORE"
"""Location of the store where no option names one."""
_ID_CHARACTERS = 10


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prepared:
    """A sweep that can begin."""

    folder: Folder
    sweep: Sweep
    given: list[str]
    """Overrides for Hydra, those of Hydra itself among them."""
    points: list[list[str]] | None
    """Overrides of every point; None where a sweeper chooses them while it runs."""


def prepare(project: Path, typed: Sequence[str], store: str | None) -> Prepared:
    """Take the sweep's copy of the project and find out what it goes over, or what is wrong with it.

    Raises:
        LowerdeckError: this is no project, an override can hold for no point, or no point can be built.
    """
    for name in snapshot.ALWAYS:
        if not (project / name).is_file():
            raise LowerdeckError(f"{project / name} is missing: run this in the folder of the project")
    given = arguments.to_hydra_overrides(typed)
    stages = read_stages(project / "dvc.yaml")
    _make_data(project, stages)
    copy = snapshot.take(project, snapshot.copied_entries(stages))
    try:
        sweep, experiment = _sweep(project, copy, typed, store)
        folder = Folder(project / snapshot.SWEEPS / sweep.id)
        snapshot.keep(copy, folder.project)
    finally:
        shutil.rmtree(copy, ignore_errors=True)
    hydra_multirun.write_configuration(
        folder.hydra, read_params(folder.project / "params.yaml"), sweep.name, experiment
    )
    folder.write(sweep)
    return _prepare_points(project, folder, given)


def resume(project: Path, sweep_id: str, typed: Sequence[str]) -> Prepared:
    """The sweep that was begun as `sweep_id`, with the copy of code and configuration that it was begun with.

    Args:
        project: Folder of the project.
        sweep_id: Name of a folder of sweeps/, empty for the newest.
        typed: Overrides of Hydra itself, such as another launcher.

    Raises:
        LowerdeckError: there is no such sweep, or it cannot go on.
    """
    folder = Folder(_find_sweep(project, sweep_id))
    sweep = folder.read()
    others = [text for text in typed if not text.startswith("hydra")]
    if others:
        raise LowerdeckError(f"a sweep that goes on keeps its overrides; {others[0]} would make another one of it")
    stages = read_stages(folder.project / "dvc.yaml")
    for entry in snapshot.copied_entries(stages):
        if entry.startswith("pipeline") and FILES.digest(project / entry) != FILES.digest(folder.project / entry):
            raise LowerdeckError(
                f"{entry}/ has changed since sweep {sweep.id} was begun; start the same sweep again, and it takes what "
                "is still valid"
            )
    return _prepare_points(project, folder, [*sweep.arguments, *typed])


def run(prepared: Prepared, project: Path, session: str) -> list[PointRecord]:
    """Run all points; the records of this start of the sweep, in order.

    Raises:
        LowerdeckError: the sweep cannot go on.
    """
    task = PointTask(project.absolute(), prepared.folder.path.absolute(), session)
    try:
        with _exclusive(prepared.folder), _recording_in_background(shared_for(task.project, task.folder)):
            hydra_multirun.multirun(prepared.folder.hydra, task, prepared.given)
    except ValueError:
        # Optuna's sweeper ends like this when it asks for the best trial of none; what follows tells why there is none.
        if not prepared.sweep.searches or search.has_metrics(prepared.sweep, prepared.folder.records(), session):
            raise
    finally:
        records = [record for record in prepared.folder.records() if record.session == session]
        summary = summarize(prepared, records, session)
        with suppress(OSError):  # a full disk has said so already
            write_json(prepared.folder.summary, summary)
    # Optuna's sweeper takes whatever a point raises for a trial that failed.
    broken = [event for event in prepared.folder.events() if event["event"] == BROKEN and event["session"] == session]
    if broken:
        raise LowerdeckError(f"the sweep cannot go on: {broken[0]['error']}")
    search.check_objectives_measured(prepared.sweep, records)
    return records


@contextmanager
def _exclusive(folder: Folder) -> Iterator[None]:
    """Keep the same sweep from being run twice at once, and remove what a start of before has left."""
    from filelock import FileLock, Timeout

    folder.work.mkdir(exist_ok=True)
    try:
        lock = FileLock(folder.path / ".lock", timeout=0).acquire()
    except Timeout:
        raise LowerdeckError(f"sweep {folder.path.name} is being run by another process") from None
    with lock:
        for left in folder.work.iterdir():
            shutil.rmtree(left, ignore_errors=True)
        yield
        for left in folder.work.iterdir():
            with suppress(OSError):  # it holds points that failed
                left.rmdir()


@contextmanager
def _recording_in_background(shared: Shared) -> Iterator[None]:
    """Let points that run in this process be recorded while the next one is built; all are when the block ends."""
    left: list[Future[None]] = []
    recorder = ThreadPoolExecutor(1, thread_name_prefix="recorder")
    shared.defer = lambda end: left.append(recorder.submit(end))
    try:
        yield
        for future in left:
            future.result()
    finally:
        recorder.shutdown(cancel_futures=True)


def summarize(prepared: Prepared, records: Sequence[PointRecord], session: str) -> dict[str, Any]:
    """What summary.json says of a start of the sweep, with counts of how often each stage really ran."""
    events = [event for event in prepared.folder.events() if event["event"] == "stage begins"]
    runs = Counter(event["stage"] for event in events if event["session"] == session)
    return {
        "id": prepared.sweep.id,
        "name": prepared.sweep.name,
        "overrides": prepared.sweep.typed,
        "num_points": len(prepared.points) if prepared.points is not None else len(records),
        "points": dict(Counter(record.status for record in records)),
        "stage_runs": dict(runs),
        "stage_runs_of_all_starts": dict(Counter(event["stage"] for event in events)),
        "seconds": round(sum(record.seconds for record in records), 3),
        "failures": [
            {"point": record.point, "overrides": record.overrides, "log": record.log, "reason": record.reason}
            for record in records
            if record.status == "failed"
        ],
        "skipped": [
            {"point": record.point, "overrides": record.overrides, "reason": record.reason}
            for record in records
            if record.status == "skipped"
        ],
    }


def _find_sweep(project: Path, sweep_id: str) -> Path:
    sweeps = project / snapshot.SWEEPS
    found = sorted(sweeps.glob("*/sweep.json"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise LowerdeckError(f"there is no sweep in {sweeps}/ yet")
    if not sweep_id:
        return found[-1].parent
    fitting = [path.parent for path in found if path.parent.name.startswith(sweep_id)]
    if len(fitting) != 1:
        names = ", ".join(path.parent.name for path in found)
        raise LowerdeckError(f"{len(fitting) or 'no'} sweeps begin with {sweep_id!r}; there are: {names}")
    return fitting[0]


def _sweep(project: Path, copy: Path, typed: Sequence[str], store: str | None) -> tuple[Sweep, dict[str, Any]]:
    """What the copy and `typed` make together, and the named sweep that it is based on."""
    name, experiment = hydra_multirun.read_experiment(copy / "conf", typed)
    params = read_params(copy / "params.yaml")
    base = arguments.merged(params, {key: experiment[key] for key in experiment if key in arguments.PARAMS})
    own = [text for text in typed if not text.startswith("hydra")]  # who runs the points makes no other sweep of it
    searched = [text for text in typed if text.startswith(("hydra/sweeper", "hydra.sweeper"))]
    versions = tool_versions(copy / "pyproject.toml")
    data = {
        source: FILES.digest(project / source) for source in snapshot.data_sources_of(read_stages(copy / "dvc.yaml"))
    }
    fingerprinted = [own, searched, FILES.digest(copy), data, versions]
    return Sweep(
        id=digest(fingerprinted)[:_ID_CHARACTERS],
        name=name,
        typed=list(typed),
        arguments=arguments.to_hydra_overrides([*own, *searched]),
        swept=hydra_multirun.sweeper_arguments(experiment),
        searches=hydra_multirun.searches(experiment, typed),
        base=base,
        objectives=arguments.objectives(typed, experiment),
        store=_location(project, store),
        versions=versions,
    ), experiment


def _location(project: Path, store: str | None) -> str:
    location = store or os.environ.get(STORE_VARIABLE) or str(project / DEFAULT_STORE)
    return location if "://" in location else str(Path(location).expanduser().absolute())


def _prepare_points(project: Path, folder: Folder, given: Sequence[str]) -> Prepared:
    """The sweep of `folder`, after every point that is known was composed.

    Raises:
        ConfigurationError: a value can hold for no point, or no point can be built.
    """
    sweep = folder.read()
    search.check_has_objectives(sweep)
    whole = [*sweep.swept, *(text for text in given if not text.startswith("hydra"))]
    points = arguments.sample_points(whole) if sweep.searches else arguments.points(whole)
    shared = shared_for(project.absolute(), folder.path.absolute())
    refused: dict[int, ConfigurationError] = {}
    for number, overrides in enumerate(points):
        params = arguments.as_params(sweep.base, overrides)
        try:
            new = PointBuild(shared, number, arguments.to_user_overrides(overrides), params).configure()
            if new and hydra_multirun.runs_in_process(given):
                warm.start_in_background(folder.project)  # it imports while the other points are composed
        except ConfigurationError as error:
            refused[number] = error
    _raise_invalid_values(points, refused)
    if len(refused) == len(points):
        raise ConfigurationError(f"no point of this sweep can be built; the first:\n{refused[0]}")
    return Prepared(folder=folder, sweep=sweep, given=list(given), points=None if sweep.searches else points)


def _raise_invalid_values(points: Sequence[Sequence[str]], refused: Mapping[int, ConfigurationError]) -> None:
    """Raise the error of a value that is wrong by itself in every point that has it: it is a mistake, and no gap."""
    having: dict[str, list[int]] = {}
    for number, overrides in enumerate(points):
        for text in arguments.to_user_overrides(overrides):
            having.setdefault(text, []).append(number)
    for text, numbers in having.items():
        key = text.partition("=")[0]
        if all(
            number in refused and any(_concerns(found, key) for found in refused[number].invalid_keys)
            for number in numbers
        ):
            raise ConfigurationError(
                f"{text} can hold for no point of this sweep, nothing was run.\n{refused[numbers[0]]}"
            )


def _concerns(found: str, key: str) -> bool:
    """Whether a problem found at a key is one of the value given for `key`; a group's is at its very name."""
    found = found.removeprefix("overrides.")
    return found == key or ("." in key and (found.startswith(f"{key}.") or key.startswith(f"{found}.")))


def _make_data(project: Path, stages: Sequence[Stage]) -> None:
    """Make data that stages name and that is not there, as `dvc repro` would."""
    missing = [path for path in snapshot.data_sources_of(stages) if not (project / path).exists()]
    if missing:
        command = [sys.executable, "-m", "dvc", "repro", "--quiet", "data/dvc.yaml"]
        done = subprocess.run(command, cwd=project, check=False)
        if done.returncode:
            raise LowerdeckError(f"{', '.join(missing)} cannot be made; `dvc repro data/dvc.yaml` shows why")
