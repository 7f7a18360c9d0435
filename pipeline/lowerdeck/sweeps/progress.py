"""Progress of a sweep for the terminal, read from its journal regardless of where the points run."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from lowerdeck.sweeps.folder import Folder, PointRecord, parse_lines

_POLL_INTERVAL_S = 0.2


class Watcher:
    """Shows points as they begin and end, with the remaining time; in plain lines without a terminal."""

    def __init__(self, folder: Folder, session: str, total: int | None, console: Console) -> None:
        """`total` is the number of points; None if the sweeper does not know it."""
        self._folder, self._session, self._total, self._console = folder, session, total, console
        self._journal, self._points = _Tail(folder.journal), _Tail(folder.points)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._started = time.monotonic()
        self._ended = 0
        self._ends: list[tuple[float, int]] = []
        """Times at which points ended, with the number of points ended by then."""
        self._now: dict[int, str] = {}
        description, left = TextColumn("{task.description}"), TextColumn("{task.fields[left]}")
        columns = (description, BarColumn(), MofNCompleteColumn(), left)
        self._progress = Progress(*columns, console=console, transient=True)
        self._task = self._progress.add_task("sweep", total=total, left="")

    def __enter__(self) -> Watcher:
        if self._console.is_terminal:
            self._progress.start()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._poll()
        self._progress.stop()

    def _watch(self) -> None:
        while not self._stop.wait(_POLL_INTERVAL_S):
            self._poll()

    def _poll(self) -> None:
        for event in self._journal.new():
            self._handle_event(event)
        for line in self._points.new():
            if line["session"] == self._session:
                self._show(PointRecord(**line))
        names = ", ".join(f"point {point}: {stage}" for point, stage in sorted(self._now.items()))
        self._progress.update(
            self._task, completed=self._ended, description=names or "sweep", left=self._remaining_time()
        )

    def _handle_event(self, event: dict[str, Any]) -> None:
        if event["event"] == "stage begins":
            self._now[event["point"]] = event["stage"]
        elif event["event"] in ("stage ends", "point ends"):
            self._now.pop(event["point"], None)

    def _show(self, record: PointRecord) -> None:
        self._ended += 1
        self._ends.append((time.monotonic(), self._ended))
        count = f"{self._ended}/{self._total}" if self._total else str(self._ended)
        left = self._remaining_time()
        text = f"[{count}] {' '.join(record.overrides) or 'params.yaml as it is'}: {describe(record)}"
        self._console.print(
            text + (f" ({left})" if left and not self._console.is_terminal else ""),
            markup=False, highlight=False, soft_wrap=True,
        )  # fmt: skip

    def _remaining_time(self) -> str:
        """Remaining time if the next points take as long as those that have ended.

        The first one does work that the others share, so it counts only until a second one has ended.
        """
        if not self._total or not self._ended or self._ended >= self._total:
            return ""
        since, ended = self._ends[0] if self._ended > 1 else (self._started, 0)
        seconds = (self._ends[-1][0] - since) / (self._ended - ended) * (self._total - self._ended)
        return f"about {duration(seconds)} left"


class _Tail:
    """New whole lines of a growing file; lines present at the start are skipped."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = path.stat().st_size if path.is_file() else 0

    def new(self) -> list[dict[str, Any]]:
        if not self._path.is_file():
            return []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._offset += len(whole) + len(newline)
        return list(parse_lines(whole))


def describe(record: PointRecord) -> str:
    """The result of a point, in one line."""
    if record.status == "skipped":
        return f"skipped: {first_problem(record.reason)}"
    ran = [stage for stage, how in record.stages.items() if how == "ran"]
    shared = len([how for how in record.stages.values() if how == "shared"])
    did = f"ran {', '.join(ran)}; {shared} shared" if ran else f"all {shared} stages shared"
    if record.status == "failed":
        failed = next((stage for stage, how in record.stages.items() if how == "failed"), "?")
        return f"FAILED in {failed} ({did}), {duration(record.seconds)}"
    return f"{did}, {duration(record.seconds)}"


def first_problem(reason: str) -> str:
    """The first problem in a ConfigurationError's list, in one line."""
    lines = [line.strip() for line in reason.splitlines() if line.strip()]
    if len(lines) > 1 and lines[0].endswith("in the configuration:"):
        lines = lines[1:]
    return lines[0] if lines else reason


def duration(seconds: float) -> str:
    """`seconds` in a readable unit."""
    if seconds < 99.5:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes / 60:.1f} h"
