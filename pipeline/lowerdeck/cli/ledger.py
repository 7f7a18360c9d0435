"""`lowerdeck ledger`: the metrics of builds in docs/ledger, and regressions since a git revision."""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lowerdeck.cli.commands import HELP
from lowerdeck.contracts.errors import LowerdeckError

if TYPE_CHECKING:
    from lowerdeck.release.ledger.difference import LedgerChange, LedgerDifference
    from lowerdeck.release.ledger.entries import Entry

LEDGER = Path("docs/ledger")


def add(commands: Any) -> None:
    """Add the command to the parser of `lowerdeck`."""
    parser: argparse.ArgumentParser = commands.add_parser("ledger", help=HELP["ledger"], description=__doc__)
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    update = actions.add_parser("update", help="write the entry of the build in build/, or those of recorded builds")
    update.add_argument(
        "selector",
        nargs="?",
        metavar="RUNS",
        help="recorded builds instead of build/: a run's id or name, a sweep's id or name, or an MLflow filter",
    )
    update.set_defaults(run=_update)
    diff = actions.add_parser(
        "diff",
        help="compare docs/ledger with that of a git revision; exit status 1 on a regression",
        description="Compare docs/ledger with that of a git revision. docs/ledger/tolerances.yaml says what a "
        "regression is; one is enough for exit status 1.",
    )
    diff.add_argument("revision", metavar="REV", help="e.g. origin/main or HEAD")
    form = diff.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON")
    form.add_argument("--md", action="store_true", help="print Markdown, for a comment on a pull request")
    diff.set_defaults(run=_diff)


def _update(options: argparse.Namespace) -> None:
    from lowerdeck.release.ledger import entries

    builds = list(_recorded(options.selector) if options.selector else _built())
    updated = entries.update(LEDGER, builds)
    for field in dataclasses.fields(updated):
        for name in getattr(updated, field.name):
            print(f"{field.name}: {name}")


def _built() -> Iterator[tuple[str, Entry]]:
    """The model and the entry of the build in build/.

    Raises:
        LowerdeckError: its files are of different builds.
    """
    from lowerdeck.artifacts import paths
    from lowerdeck.artifacts.files import read_json
    from lowerdeck.artifacts.measurements import read_all_metrics
    from lowerdeck.config.load import read_config
    from lowerdeck.release.ledger.entries import DIFFERENT_BUILDS, entry_of
    from lowerdeck.report.build import check_is_of_metrics, current_lineage

    config = read_config(paths.CONFIG)
    entry = entry_of(config, read_all_metrics(), read_json(paths.LINEAGE))
    if paths.MANIFEST.is_file():
        check_is_of_metrics()
        if current_lineage() is None:  # as where the stage track failed: other code makes another program of it
            raise LowerdeckError(f"program and lineage {DIFFERENT_BUILDS}")
    yield config.model.name, entry


def _recorded(selector: str) -> Iterator[tuple[str, Entry]]:
    """The models and entries of recorded builds, except failed ones."""
    from lowerdeck.release.ledger.entries import entry_of
    from lowerdeck.tracking import recorded_build
    from lowerdeck.tracking.runs import find_runs

    tracking = recorded_build.tracking_config()
    found = find_runs(tracking, selector=selector)
    finished = [run for run in found if run.status == "FINISHED"]
    if not finished:
        raise LowerdeckError(f"no finished build is named {selector!r}; `lowerdeck compare` lists them")
    if len(finished) < len(found):
        print(f"left out: {len(found) - len(finished)} of {len(found)} runs, which failed or are not finished")
    for run in finished:
        build = recorded_build.read(tracking, run)
        metrics = recorded_build.read_all_metrics(tracking, run)
        yield build.config.model.name, entry_of(build.config, metrics, build.lineage)


def _diff(options: argparse.Namespace) -> None:
    from lowerdeck.release.ledger.difference import ChangeVerdict, difference, read_tolerances
    from lowerdeck.release.ledger.entries import TOLERANCES_NAME, parsed, read

    tolerances = read_tolerances(LEDGER / TOLERANCES_NAME)
    found = difference(parsed(dict(_files_of(options.revision)), options.revision), read(LEDGER), tolerances)
    if options.json:
        print(json.dumps(dataclasses.asdict(found), indent=2))
    elif options.md:
        print("\n".join(_markdown(found, options.revision)))
    else:
        _show(found, options.revision)
    if worse := found.of(ChangeVerdict.REGRESSION):
        count = "1 regression" if len(worse) == 1 else f"{len(worse)} regressions"
        raise LowerdeckError(
            f"{count} against {options.revision}; if intended, widen the tolerance in {LEDGER / TOLERANCES_NAME}. "
            "Defects have none: such a build must not ship"
        )


def _files_of(revision: str) -> Iterator[tuple[str, str]]:
    """Names and texts of the ledger's files at a git revision."""
    from lowerdeck.release.ledger.entries import TOLERANCES_NAME

    # `^{commit}` rejects what is not a revision, and `--` separates it from the folder.
    listed = _git("ls-tree", "-r", "--name-only", f"{revision}^{{commit}}", "--", f"{LEDGER.as_posix()}/")
    for name in listed.splitlines():
        if name.endswith(".yaml") and Path(name).name != TOLERANCES_NAME:
            yield name, _git("show", f"{revision}:./{name}")


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, encoding="utf-8", check=False)
    except OSError as error:
        raise LowerdeckError(f"git cannot be run: {error.strerror}") from None
    if done.returncode != 0:
        raise LowerdeckError(f"git failed: {done.stderr.strip()}")
    return done.stdout


def _show(found: LedgerDifference, revision: str) -> None:
    from rich.table import Table
    from rich.text import Text

    from lowerdeck.compat.terminal import terminal_console
    from lowerdeck.release.ledger.difference import ChangeVerdict

    console = terminal_console()
    if found.changes:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for heading in ("", "entry", "metric", revision, "now", "change"):
            table.add_column(heading, overflow="fold")
        for verdict, style in zip(ChangeVerdict, ("red", "green", "dim", ""), strict=True):
            for change in found.of(verdict):
                table.add_row(*(Text(cell, style=style) for cell in _cells(change)))
        console.print(table)
    lines = [f"new: {name}" for name in found.new]
    lines += [f"removed: {name}" for name in found.missing]
    lines += [f"built differently: {name}: {', '.join(what)}" for name, what in found.changed_inputs.items()]
    for line in lines or ([] if found.changes else [f"nothing differs from {revision}"]):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _markdown(found: LedgerDifference, revision: str) -> Iterator[str]:
    """The differences as a comment on a pull request: regressions first, what stayed within its tolerance folded."""
    from lowerdeck.release.ledger.difference import ChangeVerdict

    counts = {verdict: len(found.of(verdict)) for verdict in ChangeVerdict}
    said = ", ".join(f"{number} {verdict.value}" for verdict, number in counts.items() if number)
    yield f"**Ledger against `{revision}`:** {said or 'no metric differs'}"
    for verdict, number in counts.items():
        if not number:
            continue
        folded = verdict not in (ChangeVerdict.REGRESSION, ChangeVerdict.IMPROVEMENT)
        yield f"\n<details><summary>{verdict.value}</summary>\n" if folded else ""
        yield f"| | entry | metric | {revision} | now | change |\n|---|---|---|--:|--:|--:|"
        for change in found.of(verdict):
            yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in _cells(change))} |"
        yield "\n</details>" if folded else ""
    for what, names in (("new", found.new), ("removed", found.missing)):
        yield from (f"- {what}: {name}" for name in names)
    yield from (f"- built differently: {name}: {', '.join(what)}" for name, what in found.changed_inputs.items())


def _cells(change: LedgerChange) -> tuple[str, ...]:
    """One row: verdict, where, both values with their intervals, and the change."""
    from lowerdeck.evaluation.gates import exact

    moved = ""
    if isinstance(change.before, (int, float)) and isinstance(change.now, (int, float)):
        moved = ("+" if change.now > change.before else "") + exact(change.now - change.before)
        if change.before:
            moved += f" ({(change.now - change.before) / abs(change.before):+.2%})"
    before, now = _value(change.before, change.interval_before), _value(change.now, change.interval_now)
    return change.verdict.value, f"{change.model}: {change.entry}", change.metric, before, now, moved


def _value(value: float | str | None, interval: tuple[float, float] | None) -> str:
    from lowerdeck.evaluation.gates import exact

    if value is None:
        return "not measured"
    if isinstance(value, str):
        return " ".join(value.split())
    return exact(value) + ("" if interval is None else f" (95 %: {interval[0]:g} to {interval[1]:g})")
