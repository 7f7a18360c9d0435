"""`lowerdeck sweep`: many points of the configuration in one process, as a Hydra multirun."""

from __future__ import annotations

import argparse
import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lowerdeck.cli.commands import HELP
from lowerdeck.contracts.errors import LowerdeckError

if TYPE_CHECKING:
    from rich.console import Console

    from lowerdeck.sweeps.engine import Prepared
    from lowerdeck.sweeps.folder import PointRecord

_EXAMPLES = """examples:
  lowerdeck sweep -m target=neutron_imxrt700,ethos_u55_128,xnnpack_cpu quantization=int8,int8_per_channel
  lowerdeck sweep -m 'target.options.operators_not_to_delegate=[],[aten::add]'
  lowerdeck sweep -m hydra/launcher=joblib hydra.launcher.n_jobs=2 target=ethos_u55_128,xnnpack_cpu

A point is params.yaml with the overrides of the point on top; docs/sweeps.md has the details. An interrupted sweep
continues when the same command is run again."""


_GO_ON = "; to continue, run the same command again, or `lowerdeck sweep --resume`"


def add(commands: Any) -> None:
    """Add the command to the parser of `lowerdeck`."""
    command = commands.add_parser(
        "sweep",
        help=HELP["sweep"],
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("overrides", nargs="*", metavar="KEY=VALUE,...", help="Hydra's overrides, including sweeps")
    command.add_argument("-m", "--multirun", action="store_true", help="accepted as in Hydra, without effect")
    command.add_argument(
        "--resume", nargs="?", const="", metavar="ID", help="continue an earlier sweep (default: the newest)"
    )
    command.add_argument("--store", metavar="LOCATION", help="store of results (default: sweeps/store)")
    command.set_defaults(run=_sweep)


def _sweep(options: argparse.Namespace) -> None:
    import uuid

    from lowerdeck.compat.terminal import terminal_console
    from lowerdeck.sweeps import engine
    from lowerdeck.sweeps.progress import Watcher

    project, console, session = Path.cwd(), terminal_console(), uuid.uuid4().hex[:8]
    started = time.monotonic()
    if options.resume is not None:
        prepared = engine.resume(project, options.resume, options.overrides)
    else:
        prepared = engine.prepare(project, options.overrides, options.store)
    total = len(prepared.points) if prepared.points is not None else None
    count = "a search" if total is None else "1 point" if total == 1 else f"{total} points"
    console.print(f"sweep {prepared.sweep.id}: {count}", highlight=False)
    try:
        with _says_how_to_go_on(console), Watcher(prepared.folder, session, total, console):
            records = engine.run(prepared, project, session)
    except KeyboardInterrupt:
        console.print(f"\ninterrupted{_GO_ON}")
        raise
    _print_summary(records, console, time.monotonic() - started)
    if total is None:
        _print_best(prepared, console)
    failed = sum(record.status == "failed" for record in records)
    if failed:
        raise LowerdeckError(f"{failed} of {len(records)} points failed")
    if total is not None and len(records) < total:
        raise LowerdeckError(f"{total - len(records)} of {total} points did not finish; start the same sweep again")


@contextmanager
def _says_how_to_go_on(console: Console) -> Iterator[None]:
    """Let SIGTERM, as of `kill` or a scheduler, say how to go on before it ends this process as it does anyway."""
    process = os.getpid()

    def end(number: int, frame: object) -> None:
        if os.getpid() == process:  # not in forks, which end with it
            console.print(f"\nended by SIGTERM{_GO_ON}")
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _print_summary(records: Sequence[PointRecord], console: Console, seconds: float) -> None:
    """Print counts, the reasons of skipped points, and every failure with its log."""
    from lowerdeck.sweeps.progress import duration, first_problem

    def of(status: str) -> list[PointRecord]:
        return [record for record in records if record.status == status]

    def say(text: str) -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    counts = ", ".join(f"{len(of(status))} {status}" for status in ("built", "skipped", "failed") if of(status))
    say(f"{counts or 'no point finished'} in {duration(seconds)}")
    for record in of("skipped"):
        say(f"skipped {' '.join(record.overrides)}: {first_problem(record.reason)}")
    for record in of("failed"):
        say(f"\nFAILED {' '.join(record.overrides)}\n{record.reason}\nlog: {_relative(record.log)}")


def _print_best(prepared: Prepared, console: Console) -> None:
    """Print the best points of a search."""
    from lowerdeck.evaluation.gates import exact
    from lowerdeck.sweeps import search

    found = search.best(prepared.folder.hydra, prepared.sweep.objectives)
    for point in found:
        metrics = ", ".join(f"{name} {exact(value)}" for name, value in point.metrics.items())
        console.print(f"best: {' '.join(point.overrides)}: {metrics}", markup=False, highlight=False, soft_wrap=True)


def _relative(path: str) -> str:
    place = Path(path)
    return str(place.relative_to(Path.cwd())) if place.is_relative_to(Path.cwd()) else path
