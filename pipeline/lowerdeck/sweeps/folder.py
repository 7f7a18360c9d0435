"""The folder of one sweep, sweeps/ID: its definition, its copy of code and configuration, and its history.

    sweep.json      overrides as typed, the base of all points, versions of tools
    project/        copy of code and configuration
    hydra/          Hydra's configuration
    journal.jsonl   one line per event: stages and points as they begin and end
    points.jsonl    one line per finished point; the last line of a point applies
    summary.json    counts, written when a session ends
    logs/           output of every stage that ran
    work/           workspaces of points that are running or have failed

Workers append whole lines to the .jsonl files, so that nothing is lost when one is killed. A session is one start of
the sweep.
"""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lowerdeck.artifacts.files import write_json
from lowerdeck.contracts.errors import LowerdeckError


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """The definition of a sweep, the content of sweep.json."""

    id: str
    """Short digest of everything that decides the sweep: starting the same sweep again continues it."""
    name: str
    """Name of the sweep in conf/experiment; empty if none was chosen."""
    typed: list[str]
    """Overrides as typed."""
    arguments: list[str]
    """Overrides in Hydra's form, without launchers."""
    swept: list[str]
    """Values of the named sweep in Hydra's form."""
    searches: bool
    """Whether the sweeper chooses points by the metrics of earlier ones."""
    base: dict[str, Any]
    """params.yaml with the choices and values of the named sweep."""
    objectives: list[str]
    """Metrics of metrics.json that a point returns to the sweeper."""
    store: str
    """Location of the store, relative to the project if it is below."""
    versions: dict[str, str]
    """Versions of tools."""

    def tags(self, point: int, overrides: list[str]) -> dict[str, str]:
        """MLflow tags of a point's run."""
        return {
            "sweep.id": self.id,
            "sweep.name": self.name,
            "sweep.point": str(point),
            "sweep.overrides": json.dumps(overrides),
        }


@dataclass(frozen=True, kw_only=True)
class PointRecord:
    """The result of a point; a line of points.jsonl."""

    point: int
    overrides: list[str]
    """Overrides of this point alone, as typed."""
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
    build_key: str = ""
    """Key of the build that was recorded: the run has it in its tags. Empty if there is none."""
    metrics: dict[str, Any] = field(default_factory=dict)
    """Content of metrics.json."""
    session: str = ""
    """Id of the start of the sweep that it belongs to."""


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
        """The sweep that `write` wrote.

        Raises:
            LowerdeckError: there is no such sweep.
        """
        path = self.path / "sweep.json"
        if not path.is_file():
            raise LowerdeckError(f"there is no sweep {self.path.name!r} in {self.path.parent}/")
        return Sweep(**json.loads(path.read_text(encoding="utf-8")))

    def log(self, point: int, stage: str) -> Path:
        """Path for the log of a stage that runs for a point; its folder is created."""
        place = self.path / "logs" / f"point_{point:03}" / f"{stage}.log"
        place.parent.mkdir(parents=True, exist_ok=True)
        return place

    def workspace(self, session: str, point: int) -> Path:
        """Folder for the files of a point in a session."""
        return self.work / session / f"point_{point:03}"

    def log_event(self, event: str, **fields: Any) -> None:
        """Append an event to the journal."""
        _append(self.journal, {"time": round(time.time(), 3), "event": event, **fields})

    def record(self, point: PointRecord) -> None:
        """Append a finished point."""
        _append(self.points, dataclasses.asdict(point))

    def events(self) -> Iterator[dict[str, Any]]:
        """The events of the journal in order."""
        yield from _lines(self.journal)

    def records(self) -> list[PointRecord]:
        """The last record of every point, in order."""
        last = {line["point"]: PointRecord(**line) for line in _lines(self.points)}
        return [last[point] for point in sorted(last)]


def _append(path: Path, line: dict[str, Any]) -> None:
    """Append a whole line in one write, which the system does not mix with writes of other processes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
    try:
        size = os.fstat(handle).st_size
        cut = size > 0 and os.pread(handle, 1, size - 1) != b"\n"  # a full disk cut the last line
        os.write(handle, (("\n" if cut else "") + json.dumps(line, sort_keys=True) + "\n").encode())
    finally:
        os.close(handle)


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    yield from parse_lines(path.read_bytes()) if path.is_file() else ()


def parse_lines(content: bytes) -> Iterator[dict[str, Any]]:
    """The valid lines of a .jsonl file; a full disk may have cut one."""
    for line in content.splitlines():
        with suppress(ValueError):
            yield json.loads(line)
