"""`lowerdeck clean`: removes old builds, sweeps, results, runs and cached files that nobody keeps."""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lowerdeck.cli.commands import HELP
from lowerdeck.contracts.errors import LowerdeckError

if TYPE_CHECKING:
    from lowerdeck.execution.cleaning import Removables

KINDS = ("build", "sweep", "store", "run", "cache")
_UNITS_S = {"h": 3600.0, "d": 24 * 3600.0, "w": 7 * 24 * 3600.0}
_DESCRIPTION = """Remove what has not been used for a while: files in build/ that are no output of a stage, sweeps,
results in the store, runs of the local MLflow database and objects of DVC's cache. What is promoted (`lowerdeck
promote`, or committed to git), registered in MLflow, or named (a sweep or a run with a name, results that the store
pins, branches and tags) stays. Nothing outside of the project is removed."""


def add(commands: Any) -> None:
    """Add the command to the parser of `lowerdeck`."""
    command = commands.add_parser(
        "clean",
        help=HELP["clean"],
        description=_DESCRIPTION,
    )
    command.add_argument(
        "--older-than", default="30d", metavar="AGE", help="least age: 12h, 30d or 8w (default: %(default)s)"
    )
    command.add_argument("--only", nargs="+", choices=KINDS, default=KINDS, help="kinds (default: all)")
    command.add_argument("--dry-run", action="store_true", help="only show what would be removed")
    command.add_argument("--yes", action="store_true", help="remove without asking")
    command.set_defaults(run=_clean)


def seconds_of(age: str) -> float:
    """Seconds of an age such as `30d`.

    Raises:
        LowerdeckError: it is none.
    """
    found = re.fullmatch(r"(\d{1,6})([hdw])", age)
    if found is None:
        raise LowerdeckError(f"--older-than {age}: not an age; allowed are hours, days and weeks such as 12h, 30d, 8w")
    return int(found[1]) * _UNITS_S[found[2]]


def _clean(options: argparse.Namespace) -> None:
    project = Path.cwd()
    if not (project / "dvc.yaml").is_file() or not (project / "params.yaml").is_file():
        raise LowerdeckError(f"{project} has no dvc.yaml and params.yaml; run this in the folder of the project")
    found = list(_found(project, time.time() - seconds_of(options.older_than), options.only))
    count = sum(len(kind.items) for kind in found)
    if not count:
        print(f"nothing is older than {options.older_than} that nobody keeps")
        return
    _print(found)
    if options.dry_run:
        print("nothing was removed (--dry-run)")
        return
    if not options.yes and not _confirmed(count):
        print("nothing was removed")
        return
    for kind in found:
        kind.remove()
    print(f"removed {count} {'item' if count == 1 else 'items'}")


def _found(project: Path, before: float, kinds: Sequence[str]) -> Iterator[Removables]:
    from lowerdeck.execution import cleaning
    from lowerdeck.sweeps import cleaning as sweeps
    from lowerdeck.sweeps import engine
    from lowerdeck.tracking import cleaning as tracking
    from lowerdeck.tracking.recorded_build import tracking_config

    kept: frozenset[str] = frozenset()
    if {"run", "sweep"} & set(kinds):
        runs = tracking.old_runs(tracking_config(), project, before, committed_builds())
        kept = runs.kept_sweeps
    if "build" in kinds:
        yield cleaning.leftovers_of_builds(project, before)
    if "sweep" in kinds:
        yield sweeps.old_sweeps(project, before, kept)
    if "store" in kinds:
        yield sweeps.old_results(project, Path(engine.store_location(project)), before)
    if "run" in kinds:
        yield runs.removables
    if "cache" in kinds:
        yield cleaning.unused_cache(project, before)


def committed_builds() -> set[str]:
    """Build keys of the lineage in the workspace and in every commit of every branch and tag."""
    from lowerdeck.artifacts import paths

    contents = [paths.LINEAGE.read_bytes()] if paths.LINEAGE.is_file() else []
    with suppress(OSError):  # without git, there is only the workspace
        path = paths.LINEAGE.as_posix()
        # Without --full-history, git leaves out a side of a merge that took the path from the other.
        log = ["git", "log", "--all", "--full-history", "--format=%H", "--", path]
        commits = subprocess.run(log, capture_output=True, text=True, check=False).stdout.split()
        shown = (
            subprocess.run(["git", "show", f"{commit}:./{path}"], capture_output=True, check=False)
            for commit in commits
        )
        contents += [done.stdout for done in shown if done.returncode == 0]
    keys = set()
    for content in contents:
        with suppress(ValueError, KeyError, TypeError):  # of a version of the project that recorded it otherwise
            keys.add(str(json.loads(content)["build_key"]))
    return keys


def _print(found: Sequence[Removables]) -> None:
    from rich.table import Table
    from rich.text import Text

    from lowerdeck.compat.terminal import terminal_console

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("kind")
    table.add_column("what", overflow="fold")
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("last used", no_wrap=True)
    for kind in found:
        for item in kind.items:
            day = time.strftime("%Y-%m-%d", time.localtime(item.last_used))
            table.add_row(kind.kind, Text(item.what), _megabytes(item.size_bytes), day)
    total = sum(item.size_bytes for kind in found for item in kind.items)
    table.add_row("all", "", _megabytes(total), "")
    terminal_console(highlight=False).print(table)


def _megabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:,.1f} MB"


def _confirmed(count: int) -> bool:
    """Whether the user agrees.

    Raises:
        LowerdeckError: there is nobody to ask.
    """
    if not sys.stdin.isatty():
        raise LowerdeckError("nothing was removed: there is no terminal to ask; --yes removes without asking")
    try:
        answer = input(f"remove {'this item' if count == 1 else f'these {count} items'}? [y/N] ")
    except EOFError:  # Ctrl-D
        print()
        return False
    return answer.strip().lower() in ("y", "yes")
