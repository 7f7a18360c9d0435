"""Tables of the page: builds, their metrics by flavor, and what each option changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape

from lowerdeck.comparison import numbers
from lowerdeck.comparison.builds import ComparedBuild
from lowerdeck.comparison.columns import Column, Kind
from lowerdeck.comparison.comparison import Comparison
from lowerdeck.comparison.effects import Effect, MetricChange
from lowerdeck.comparison.marks import Mark, is_better, marks
from lowerdeck.comparison.parameters import differing
from lowerdeck.comparison.pareto import Standing
from lowerdeck.comparison.terminal import shown_columns
from lowerdeck.pages.comparison.plots import Look, key_mark

SIGNS = {Mark.BEST: "★", Mark.TIED: "≈"}
MAX_OPEN_ROWS = 40
"""Longer tables beside that of all builds are folded away."""
MAX_EFFECTS = 200
_CUT = 60


def builds_table(comparison: Comparison, look: Look, links: Mapping[str, Sequence[tuple[str, str]]]) -> str:
    """All builds; the script sorts it by a click on a heading, and narrows it down."""
    shown = shown_columns(comparison)
    linked = any(links.values())
    heads = [_head("build")] + [_head(parameter.key) for parameter in comparison.parameters]
    heads += [_column_head(comparison, column) for column in shown]
    heads += ["<th scope=col>files</th>"] if linked else []
    rows = []
    for number, build in enumerate(comparison.builds):
        cells = [_name(comparison, build, look)]
        cells += [_text(parameter.values[number]) for parameter in comparison.parameters]
        cells += [_number(column, build, comparison.marks[column].get(build.label)) for column in shown]
        cells += [_files(links[build.label])] if linked else []
        standing = look.style(build) if build.is_eligible else ""
        rows.append(f'<tr data-row="{look.rows[build.label]}" class="{standing}">{"".join(cells)}</tr>')
    hint = (
        f'<p class="hint">{SIGNS[Mark.BEST]} best of a column; {SIGNS[Mark.TIED]} not distinguishable from the best, '
        "by a paired test where both were recorded sample by sample, else by 95 % intervals that overlap. Each column "
        "holds one kind of metric by one author.</p>"
    )
    return hint + _table("".join(heads), rows, "builds") + '<button type="button" id="more" hidden></button>'


def flavor_tables(comparison: Comparison, look: Look) -> str:
    """For each compiler the metrics that only it gives, ranked among its own builds."""
    parts = []
    for compiler in sorted({build.compiler for build in comparison.builds}):
        mine = [build for build in comparison.builds if build.compiler == compiler]
        fit = [build for build in mine if build.is_eligible]
        rows = {build.label: row for row, build in enumerate(comparison.builds)}
        columns = [
            column
            for column in comparison.columns
            if (
                column in comparison.objective_columns
                or (column.source == compiler and column.kind is not Kind.MEASURED)
            )
            and any(column.value(build) is not None for build in mine)
        ]
        found = {column: marks(column, fit, {}) if column.kind is not Kind.MEASURED else {} for column in columns}
        parameters = differing(mine)
        heads = [_head("build"), *(_head(parameter.key) for parameter in parameters)]
        heads += [_column_head(comparison, column) for column in columns]
        lines = []
        for number, build in enumerate(mine):
            cells = [_name(comparison, build, look), *(_text(parameter.values[number]) for parameter in parameters)]
            cells += [_number(column, build, found[column].get(build.label)) for column in columns]
            lines.append(f'<tr data-row="{rows[build.label]}">{"".join(cells)}</tr>')
        counted = "1 build" if len(mine) == 1 else f"{len(mine)} builds"
        heading = f"{escape(compiler or 'flavor not recorded')}: {counted}"
        body = _table("".join(heads), lines, "flavor")
        is_open = " open" if len(mine) <= MAX_OPEN_ROWS else ""
        parts.append(f"<details{is_open}><summary>{heading}</summary>{body}</details>")
    return "".join(parts)


def effects_tables(comparison: Comparison) -> str:
    """For each parameter the changes of the metrics, from pairs of builds that differ in it alone."""
    if not comparison.effects:
        return "<p>No two builds differ in one parameter alone, so that no change can be put down to one.</p>"
    chosen = [column for column in shown_columns(comparison) if column.direction is not None]
    by_parameter: dict[str, list[Effect]] = {}
    for effect in comparison.effects[:MAX_EFFECTS]:
        by_parameter.setdefault(effect.parameter, []).append(effect)
    hint = (
        '<p class="hint">Means over pairs of builds that differ in this one parameter. In brackets: the 95 % interval '
        "for accuracies, and the range over the pairs for other metrics. ▲ better, ▼ worse, ≈ within noise.</p>"
    )
    parts = [hint]
    for parameter, group in by_parameter.items():
        columns = [column for column in chosen if any(column in effect.changes for effect in group)]
        heads = [_head("from"), _head("to"), _head("pairs", number=True)]
        heads += [_column_head(comparison, column) for column in columns]
        rows = []
        for effect in group:
            cells = [_text(effect.before), _text(effect.after), f'<td class="number">{effect.num_pairs:,}</td>']
            cells += [_change(column, effect.changes.get(column)) for column in columns]
            rows.append(f"<tr>{''.join(cells)}</tr>")
        parts.append(f"<h3>{escape(parameter)}</h3>{_table(''.join(heads), rows, 'effects')}")
    alone = set(by_parameter)
    silent = [parameter.key for parameter in comparison.parameters if parameter.key not in alone]
    if silent:
        parts.append(f'<p class="hint">Never differ alone: {escape(", ".join(silent))}.</p>')
    return "".join(parts)


def _table(heads: str, rows: Sequence[str], name: str) -> str:
    return (
        f'<div class="scroll {name}"><table><thead><tr>{heads}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'
    )


def _head(text: str, *, number: bool = False) -> str:
    section, dot, rest = text.partition(".")
    content = f"<small>{escape(section)}.</small>{escape(rest)}" if dot else escape(text)
    return f'<th scope="col"{" class=number" if number else ""}>{content}</th>'


def _column_head(comparison: Comparison, column: Column) -> str:
    title, unit = numbers.title(column, with_source=False), numbers.unit(column)
    said = ", ".join(part for part in (comparison.source_label(column), unit) if part)
    wanted = " wanted" if column in comparison.objective_columns else ""
    small = f"<small>{escape(said)}</small>" if said else ""
    return f'<th scope="col" class="number{wanted}" title="{escape(column.kind)}">{escape(title)}{small}</th>'


def _name(comparison: Comparison, build: ComparedBuild, look: Look) -> str:
    standing, style = comparison.standings.get(build.label), look.style(build)
    sign = key_mark(style) if style else '<span class="sign"></span>'
    order = {None: 2, Standing.WITHIN_NOISE: 1, Standing.OPTIMAL: 0}[standing] if build.is_eligible else 3
    status = standing or ("" if build.is_eligible else f"{build.state}: {build.reason}")
    title = f"{build.name}{f': {status}' if status else ''}"
    return f'<th scope="row" data-value="{order}" title="{escape(title)}">{sign}{escape(build.label)}</th>'


def _text(value: str) -> str:
    line = " ".join(value.split())
    if len(line) <= _CUT:
        return f"<td>{escape(line)}</td>"
    return f'<td title="{escape(line)}">{escape(line[: _CUT - 1])}…</td>'


def _number(column: Column, build: ComparedBuild, mark: Mark | None) -> str:
    value = column.value(build)
    if value is None:
        why = build.texts.get(column.metric, "")
        return f'<td class="number none" title="{escape(why)}">-</td>'
    ends = numbers.interval(column, column.interval(build))
    small = f"<small>{ends}</small>" if ends else ""
    sign = f'<i title="{mark}">{SIGNS[mark]}</i>' if mark else ""
    style = f" {mark.name.lower()}" if mark else ""
    return f'<td class="number{style}" data-value="{value!r}">{sign}{numbers.number(column, value)}{small}</td>'


def _files(links: Sequence[tuple[str, str]]) -> str:
    return f'<td class="files">{" ".join(_anchors(links))}</td>'


def _anchors(links: Sequence[tuple[str, str]]) -> Iterator[str]:
    for name, address in links:
        yield f'<a href="{escape(address)}">{escape(name)}</a>'


def _change(column: Column, change: MetricChange | None) -> str:
    if change is None:
        return '<td class="number none">-</td>'
    assert column.direction is not None
    if change.num_distinct == 0:
        sign, style = "≈" if change.has_interval else "", "none"
    else:
        better = is_better(change.mean, 0.0, column.direction)
        sign, style = ("▲", "better") if better else ("▼", "worse")
    ends = ""
    if change.has_interval:
        ends = numbers.interval(column, (change.low, change.high), signed=True)
    elif change.low != change.high:
        ends = " to ".join(numbers.number(column, end, signed=True) for end in (change.low, change.high))
    small = f"<small>{ends}</small>" if ends else ""
    value_text = numbers.number(column, change.mean, signed=True)
    return f'<td class="number {style}"><i>{sign}</i>{value_text}{small}</td>'
