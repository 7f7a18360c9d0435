"""`lowerdeck operators`: compares documented operators with those of the installed versions."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from lowerdeck import backends
from lowerdeck.cli.commands import HELP
from lowerdeck.contracts.errors import LowerdeckError

if TYPE_CHECKING:
    from lowerdeck.operators.rows import Page

_MAX_DIFFERENCES = 20
"""Limit of the differences listed in a message."""


def add(commands: Any) -> None:
    """Add the command to the parser of `lowerdeck`."""
    command = commands.add_parser(
        "operators",
        help=HELP["operators"],
    )
    command.description = (
        "Lower a minimal module for every row and every constraint of a backend's operator tables with the installed "
        "versions, execute what is delegated on this host, and compare with the table in docs/operators. It takes "
        "minutes; docs/operators/README.md explains the result."
    )
    command.add_argument("--backend", required=True, choices=backends.available())
    command.add_argument("--update", action="store_true", help="write the table instead of comparing with it")
    command.add_argument(
        "--only",
        default="*",
        metavar="GLOB",
        help="rows whose operator matches, e.g. 'conv*', or whole keys: 'partitioner: add*(int8)*'",
    )
    command.set_defaults(run=_operators)


def _operators(options: argparse.Namespace) -> None:
    from lowerdeck.operators import rows

    if not rows.PAGES.is_dir():
        raise LowerdeckError(f"there is no folder {rows.PAGES}; run this at the root of the project")
    fresh = _measure(options.backend, options.only)
    _print(fresh)
    if options.update:
        _update(fresh, is_whole=options.only == "*")
    own = [f"{row.key}: {row.problem}" for row in fresh.rows if row.outcome == "own error"]
    if own:
        raise LowerdeckError("errors of the project itself, which are unrelated to the backend:\n  " + "\n  ".join(own))
    if options.update:
        return
    found = list(rows.differences(rows.read(options.backend), fresh))
    if found:
        listed = "\n".join(f"  {line}" for line in found[:_MAX_DIFFERENCES])
        more = f"\n  and {len(found) - _MAX_DIFFERENCES} more" if len(found) > _MAX_DIFFERENCES else ""
        raise LowerdeckError(
            f"{len(found)} differences from {rows.path(options.backend)}:\n{listed}{more}\n`--update` rewrites the "
            "table; review its changes before you commit it"
        )
    print(f"{len(fresh.rows)} rows are as in {rows.path(options.backend)}")


def _measure(backend: str, only: str) -> Page:
    from lowerdeck.execution.environment import quiet_libraries

    quiet_libraries()  # before torch is imported
    import torch

    from lowerdeck.compat.terminal import progress_bar
    from lowerdeck.operators import rows

    planned = rows.planned(backend, only)
    if not planned:
        raise LowerdeckError(f"no row matches --only {only!r}; docs/operators/{backend}.md lists the rows")
    torch.set_num_threads(1)
    with progress_bar(total=len(planned), unit="row", disable=None) as progress:

        def advance(key: str) -> None:
            progress.set_postfix_str(key)
            progress.update()

        return rows.measured(backend, planned, advance)


def _update(fresh: Page, *, is_whole: bool) -> None:
    from lowerdeck.artifacts.files import write_text
    from lowerdeck.operators import page, rows

    path = rows.path(fresh.backend)
    whole = fresh if is_whole or not path.is_file() else rows.merged(rows.read(fresh.backend), fresh)
    rows.write(whole)
    text = path.with_suffix(".md")
    write_text(text, page.markdown(whole))
    print(f"{path} and {text.name} have {len(whole.rows)} rows: {page.summary(whole.rows)}")


def _print(fresh: Page) -> None:
    from rich.table import Table

    from lowerdeck.compat.terminal import terminal_console
    from lowerdeck.operators import page

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in page.HEADINGS:
        table.add_column(heading, overflow="fold")
    for row in fresh.rows:
        table.add_row(*page.columns(row), style="bold" if row.verdict in page.MARKED else None)
    console = terminal_console(markup=False)
    console.print(table)
    console.print(f"{len(fresh.rows)} rows: {page.summary(fresh.rows)}")
