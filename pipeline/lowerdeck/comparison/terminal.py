"""The comparison as tables for the terminal, split to fit its width."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from lowerdeck.comparison import formatting
from lowerdeck.comparison.columns import Column, Kind
from lowerdeck.comparison.comparison import Comparison
from lowerdeck.comparison.conclusions import all_conclusions
from lowerdeck.comparison.effects import Effect
from lowerdeck.comparison.marks import Mark
from lowerdeck.comparison.pareto import Standing
from lowerdeck.compat.terminal import terminal_console

MARKS = {Mark.BEST: "*", Mark.TIED: "≈"}
STANDINGS = {Standing.OPTIMAL: "◆", Standing.WITHIN_NOISE: "◇"}
INELIGIBLE = "✕"
RECOMMENDED = "▶"
_SHOWN = (
    "delegated_accuracy", "quantized_accuracy", "accelerated_macs_share", "delegated_macs_share", "delegated_share",
    "undelegated_macs", "partitions", "crossing_bytes", "program_bytes", "ram_bytes",
    "estimated_inference_time_ms", "estimated_total_cycles", "simulated_inference_time_ms", "simulated_total_cycles",
)  # fmt: skip
_GAP = 2
_MAX_VALUE_CHARACTERS = 32
_MAX_EFFECTS = 12
_PIPED_WIDTH = 100_000


@dataclass(frozen=True, kw_only=True)
class _Shown:
    """A column of text."""

    heading: str
    cells: Sequence[Text]
    is_number: bool

    @property
    def width(self) -> int:
        return max([cell.cell_len for cell in self.cells] + [len(line) for line in self.heading.splitlines()])


def console() -> Console:
    """Standard output; in a pipe, lines are as long as the table unless COLUMNS is set."""
    found = terminal_console(highlight=False)
    if found.is_terminal or "COLUMNS" in os.environ:
        return found
    return terminal_console(highlight=False, width=_PIPED_WIDTH)


def print_comparison(comparison: Comparison, console: Console, *, top: int | None, metrics: Sequence[str] = ()) -> None:
    """Print the recommendations, the table, the legend and the builds that could not be compared.

    Args:
        comparison: The comparison to print.
        console: Where to print.
        top: Most rows; None for all.
        metrics: Metrics to show instead of the default ones.
    """
    rows = comparison.builds[:top]
    columns = [
        _first(comparison, len(rows)),
        *_parameters(comparison, len(rows)),
        *_metric_columns(comparison, len(rows), metrics),
    ]
    print_recommendations(comparison, console)
    for part in _packed(columns, console.width):
        table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0))
        for column in part:
            table.add_column(Text(column.heading), justify="right" if column.is_number else "left", no_wrap=True)
        for number in range(len(rows)):
            table.add_row(*(column.cells[number] for column in part))
        console.print()
        console.print(table)
    console.print()
    for line in _notes(comparison, len(rows)):
        console.print(Text(line), soft_wrap=True)


def print_recommendations(comparison: Comparison, console: Console) -> None:
    """Print which build to ship on each target, and why."""
    for it in all_conclusions(comparison):
        ship = f"ship {it['build']}  {it['configuration']}" if it["build"] else "nothing to ship"
        console.print()
        console.print(Text.assemble((f"{it['target']}: ", "bold"), (ship, "bold green" if it["build"] else "bold red")))
        for sentence in (*it["why"], it["beats"], *(f"It loses {loss}." for loss in it["loses"]), *it["caveats"]):
            if sentence:
                console.print(Padding(Text(sentence), (0, 0, 0, 2), expand=False))
        if it["command"]:
            console.print(Text(f"  {it['command']}", style="bold"), soft_wrap=True)


def _first(comparison: Comparison, count: int) -> _Shown:
    cells = []
    for build in comparison.builds[:count]:
        standing = comparison.standings.get(build.label)
        sign = STANDINGS[standing] if standing else " " if build.is_eligible else INELIGIBLE
        same = f" (= {len(build.identical)} more)" if build.identical else ""
        style = "bold green" if build.label in comparison.recommended else ""
        sign = RECOMMENDED if build.label in comparison.recommended else sign
        cells.append(Text(f"{sign} {build.label}{same}", style=style))
    return _Shown(heading="  build", cells=cells, is_number=False)


def _parameters(comparison: Comparison, count: int) -> Iterator[_Shown]:
    for parameter in comparison.parameters:
        section, dot, rest = parameter.key.partition(".")
        heading = f"{section}.\n{rest}" if dot else section
        cells = [Text(_truncate(value)) for value in parameter.values[:count]]
        yield _Shown(heading=heading, cells=cells, is_number=False)


def _truncate(value: str) -> str:
    line = " ".join(value.split())
    return line if len(line) <= _MAX_VALUE_CHARACTERS else line[: _MAX_VALUE_CHARACTERS - 1] + "…"


def _metric_columns(comparison: Comparison, count: int, metrics: Sequence[str]) -> Iterator[_Shown]:
    for column in shown_columns(comparison, metrics):
        cells = []
        for build in comparison.builds[:count]:
            text = formatting.value(column, build)
            if (ends := formatting.interval(column, column.interval(build))) and column.value(build) is not None:
                text += f" ({ends})"
            mark = comparison.marks[column].get(build.label)
            cells.append(Text(f"{text} {MARKS[mark] if mark else ' '}", style="green" if mark else ""))
        title, unit = formatting.title(column, with_source=False), formatting.unit(column)
        heading = f"{title}\n{comparison.source_label(column)} {unit}".replace("\n ", "\n")
        yield _Shown(heading=heading, cells=cells, is_number=True)


def shown_columns(comparison: Comparison, metrics: Sequence[str] = ()) -> list[Column]:
    """The columns of a short table: `metrics`, or else the objectives and the default metrics with differing values."""
    if metrics:
        return [column for metric in metrics for column in comparison.columns if column.metric == metric]
    objectives = comparison.objective_columns
    return [
        column
        for column in comparison.columns
        if column in objectives or (column.metric in _SHOWN and comparison.varies(column))
    ]


def _packed(columns: Sequence[_Shown], width: int) -> Iterator[list[_Shown]]:
    """Columns in as few tables as fit the width; each table starts with the first column."""
    first, *rest = columns
    part = [first]
    for column in rest:
        taken = sum(other.width + _GAP for other in part)
        if len(part) > 1 and taken + column.width + _GAP > width:
            yield part
            part = [first]
        part.append(column)
    yield part


def _notes(comparison: Comparison, count: int) -> Iterator[str]:
    if count < len(comparison.builds):
        yield f"{len(comparison.builds) - count} more builds; --top 0 shows all"
    objectives = ", ".join(map(str, comparison.objectives))
    yield f"{RECOMMENDED} recommended   ◆ Pareto-optimal on its target in {objectives}   ◇ the same, within noise"
    for build in comparison.builds[:count]:
        if build.identical:
            yield f"{build.label} is the same program as {', '.join(other.label for other in build.identical)}"
    yield "* best of its target   ≈ not distinguishable from the best (95 % intervals)"
    if not all(build.is_eligible for build in comparison.builds):
        yield f"{INELIGIBLE} misses its gates, has a defect or is not finished: shown, but never marked as the best"
    samples = {column.source for column in comparison.columns if column.kind is Kind.MEASURED and column.source}
    if len(samples) > 1:
        yield f"measured on {len(samples)} sets of samples, which cannot be compared: each has its own columns"
    compilers = {column.source for column in comparison.columns if column.kind is Kind.ESTIMATED}
    if compilers:
        yield "estimates are those of the compiler named above them; times of different compilers are not comparable"
    for build in comparison.builds:
        if build.reason:
            yield f"{build.label} {build.state}: {build.reason}"
    for build in comparison.not_comparable:
        yield f"{build.label} {build.state}: {build.reason or 'nothing more is recorded'} ({build.name})"


def print_effects(comparison: Comparison, console: Console) -> None:
    """Print the effect of each option on the objectives."""
    for effect in comparison.effects[:_MAX_EFFECTS]:
        console.print(Text(format_effect(comparison, effect)), soft_wrap=True)
    if len(comparison.effects) > _MAX_EFFECTS:
        console.print(f"{len(comparison.effects) - _MAX_EFFECTS} more changes are on the page", highlight=False)


def format_effect(comparison: Comparison, effect: Effect) -> str:
    """E.g. `target: a -> b: delegated accuracy -0.28 (-2.1 to +1.5) %, within noise`."""
    parts = []
    for column in comparison.objective_columns:
        change = effect.changes.get(column)
        if change is None:
            continue
        text = f"{formatting.title(column, with_source=False)} {formatting.number(column, change.mean, signed=True)}"
        if change.has_interval:
            text += f" ({formatting.interval(column, (change.low, change.high), signed=True)})"
        text += f" {formatting.unit(column)}".rstrip()
        if change.has_interval and not change.num_distinct:
            text += ", within noise"
        parts.append(text)
    pairs = "1 pair" if effect.num_pairs == 1 else f"mean of {effect.num_pairs} pairs"
    return f"{effect.parameter}: {_truncate(effect.before)} -> {_truncate(effect.after)} ({pairs}): {'; '.join(parts)}"
