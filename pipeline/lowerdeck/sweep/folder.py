"""The folder of one sweep, sweeps/ID: what it goes over, its copy of code and configuration, and what has happened.

    sweep.json      what was typed, the base of all points, tools
    project/        copy of code and configuration
    hydra/          what Hydra composes
    journal.jsonl   one line an event: stages and points as they begin and end
    points.jsonl    one line a point that has ended; of several lines of one point the last counts
    summary.json    counts, written when a run of the sweep ends
    logs/           what every stage that ran has printed
    work/           folders of points that run, or that failed

Workers append whole lines to the two .jsonl files, so that nothing is lost when one is killed.
"""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lowerdeck.artifacts.files import write_json
from lowerdeck.contracts.errors import LowerdeckError


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """What a sweep goes over; sweep.json holds it."""

    id: str
    """Short digest of all that decides the sweep: starting the same again goes on with it."""
    name: str
    """Of the named sweep of conf/experiment, empty where none was chosen."""
    typed: list[str]
    """Overrides as typed."""
    arguments: list[str]
    """The same as Hydra gets them, without launchers."""
    swept: list[str]
    """What the named sweep goes over, likewise."""
    searches: bool
    """Whether the sweeper chooses points by what came of others."""
    base: dict[str, Any]
    """params.yaml with the choices and values of the named sweep."""
    objectives: list[str]
    """Metrics of metrics.json that a point returns to the sweeper."""
    store: str
    """Location of the store."""
    versions: dict[str, str]
    """Of tools."""

    def tags(self, point: int, overrides: list[str]) -> dict[str, str]:
        """What the MLflow run of a point says of the sweep."""
        tags = {
            "sweep.id": self.id,
            "sweep.name": self.name,
            "sweep.point": str(point),
            "sweep.overrides": json.dumps(overrides),
        }
        return tags | {f"sweep.override.{key}": value for key, _, value in (text.partition("=") for text in overrides)}


@dataclass(frozen=True, kw_only=True)
class PointRecord:
    """How a point ended; a line of points.jsonl."""

    point: int
    overrides: list[str]
    """Of this point alone, as typed."""
    status: str
    """`built`, `failed` or `skipped`."""
    reason: str = ""
    """Why it was skipped or failed."""
    stages: dict[str, str] = field(default_factory=dict)
    """`ran`, `shared` or `failed` by stage."""
    seconds: float = 0.0
    log: str = ""
    """Log of the stage that failed."""
    program_sha256: str = ""
    """Of the `.pte`."""
    metrics: dict[str, Any] = field(default_factory=dict)
    """Metrics of metrics.json."""
    session: str = ""
    """Which start of the sweep it belongs to."""


class Folder:
    """sweeps/ID."""

    def __init__(self, path: Path) -> None:
        """`path` need not exist yet."""
        self.path = path
        self.project = path / "project"
        self.hydra = path / "hydra"
        self.work = path / "work"
        self.journal = path / "journal.jsonl"
        self.points = path / "points.jsonl"
        self.summary = path / "summary.json"

    def write(self, sweep: Sweep) -> None:
        """Write sweep.json."""
        write_json(self.path / "sweep.json", dataclasses.asdict(sweep))

    def read(self) -> Sweep:
        """What `write` wrote.

        Raises:
            LowerdeckError: there is no such sweep.
        """
        path = self.path / "sweep.json"
        if not path.is_file():
            raise LowerdeckError(f"there is no sweep {self.path.name!r} in {self.path.parent}/")
        return Sweep(**json.loads(path.read_text(encoding="utf-8")))

    def log(self, point: int, stage: str) -> Path:
        """Place for the log of a stage that ran for a point."""
        place = self.path / "logs" / f"point_{point:03}" / f"{stage}.log"
        place.parent.mkdir(parents=True, exist_ok=True)
        return place

    def workspace(self, session: str, point: int) -> Path:
        """Place for the files of a point that runs in a start of the sweep."""
        return self.work / session / f"point_{point:03}"

    def log_event(self, event: str, **fields: Any) -> None:
        """Append an event to the journal."""
        _append(self.journal, {"time": round(time.time(), 3), "event": event, **fields})

    def record(self, point: PointRecord) -> None:
        """Append a point that has ended."""
        _append(self.points, dataclasses.asdict(point))

    def events(self) -> Iterator[dict[str, Any]]:
        """The journal, from the beginning."""
        yield from _lines(self.journal)

    def records(self) -> list[PointRecord]:
        """The last record of every point, in order."""
        last = {line["point"]: PointRecord(**line) for line in _lines(self.points)}
        return [last[point] for point in sorted(last)]


def _append(path: Path, line: dict[str, Any]) -> None:
    """One write of a whole line, which the system keeps apart from those of other processes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        size = os.fstat(handle).st_size
        cut = size > 0 and os.pread(handle, 1, size - 1) != b"\n"  # a full disk took no more
        os.write(handle, (("\n" if cut else "") + json.dumps(line, sort_keys=True) + "\n").encode())
    finally:
        os.close(handle)


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """The sound lines of a file; a full disk may have cut the last one."""
    if not path.is_file():
        return
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            continue
