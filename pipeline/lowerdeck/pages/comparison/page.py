"""The page to decide from: one HTML file that loads nothing; without its script everything is still there to read."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from lowerdeck.comparison import choice, numbers
from lowerdeck.comparison.builds import ComparedBuild, State
from lowerdeck.comparison.columns import ALIASES, Column, Kind, resolve_columns
from lowerdeck.comparison.comparison import Comparison
from lowerdeck.comparison.parameters import Parameter
from lowerdeck.comparison.pareto import Standing
from lowerdeck.comparison.terminal import shown_columns
from lowerdeck.pages.comparison.behaviour import SCRIPT
from lowerdeck.pages.comparison.parallel import parallel
from lowerdeck.pages.comparison.plots import INELIGIBLE, Look, key_mark, scatter
from lowerdeck.pages.comparison.style import STYLE
from lowerdeck.pages.comparison.tables import builds_table, effects_tables, flavor_tables
from lowerdeck.pages.parts import page_head, script_element, section, table

MAX_COLORS = 7
MAX_PLOTS = 8
MAX_CHOICES = 40
"""Values of a parameter that can be chosen from; one with more is found by typing."""
_PLOTTED_AGAINST = ("coverage", "time", "size", "memory")


def render(comparison: Comparison, title: str, folder: Path | None) -> str:
    """The page.

    Args:
        comparison: What it shows.
        title: What was compared.
        folder: Where the page is going to lie: local files are linked from there. None links to servers only.
    """
    by, look = _look(comparison)
    parts = [
        page_head(title, STYLE, SCRIPT),
        "<main>",
        f'<header><p class="kind">Lowerdeck comparison</p><h1>{escape(title)}</h1></header>',
        _caveats(comparison),
        '<ul class="summary">',
        *(f"<li>{escape(sentence)}</li>" for sentence in choice.sentences(comparison)),
        "</ul>",
        _controls(comparison),
        section("Trade-offs", _legend(comparison, by), _plots(comparison, look)),
        section("Each build across its parameters and metrics", _parallel(comparison, look)),
        section("Builds", builds_table(comparison, look, _links(comparison, folder))),
        section("By flavor", flavor_tables(comparison, look)),
        section("What each option changed", effects_tables(comparison)),
        _left_out(comparison),
        section("What is the same", _shared(comparison)),
        '<aside id="card" hidden></aside></main>',
        script_element(SCRIPT),
        "</body></html>",
    ]
    return "\n".join(part for part in parts if part) + "\n"


def _look(comparison: Comparison) -> tuple[Parameter | None, Look]:
    """The parameter that colours stand for, and how builds look."""
    few = [parameter for parameter in comparison.parameters if len(set(parameter.values)) <= MAX_COLORS]
    by = next((parameter for parameter in few if parameter.key == "target"), few[0] if few else None)
    values = sorted(set(by.values)) if by else []
    rows = {build.label: row for row, build in enumerate(comparison.builds)}
    colors = {label: values.index(by.values[row]) if by else 0 for label, row in rows.items()}
    return by, Look(rows=rows, colors=colors, standings=comparison.standings)


def _caveats(comparison: Comparison) -> str:
    found = sorted(
        {build.texts["converter.caveat"] for build in comparison.builds if "converter.caveat" in build.texts}
    )
    return "".join(f'<p class="caveat" role="note">{escape(caveat)}</p>' for caveat in found)


def _controls(comparison: Comparison) -> str:
    """What narrows the page down; it acts on plots and tables alike."""
    selects = []
    for number, parameter in enumerate(comparison.parameters):
        values = sorted(set(parameter.values))
        if len(values) <= MAX_CHOICES:
            options = "".join(
                f'<option value="{escape(value)}">{escape(_truncate(value))}</option>' for value in values
            )
            every = '<option value="" data-all>all</option>'
            select = f'<select data-parameter="{number}">{every}{options}</select>'
            selects.append(f"<label>{escape(parameter.key)}{select}</label>")
    return (
        '<form class="controls" hidden><label>find<input type="search" id="find" placeholder="any words of a row" '
        f'autocomplete="off"></label>{"".join(selects)}<label class="check"><input type="checkbox" id="optimal"> '
        'Pareto-optimal only</label><output id="count"></output></form>'
    )


def _truncate(text: str) -> str:
    return text if len(text) <= 40 else text[:39] + "…"


def _legend(comparison: Comparison, by: Parameter | None) -> str:
    entries = [(key_mark("optimal"), str(Standing.OPTIMAL)), (key_mark(""), "other builds")]
    if Standing.WITHIN_NOISE in comparison.standings.values():
        entries.insert(1, (key_mark("within_noise"), str(Standing.WITHIN_NOISE)))
    if not all(build.is_eligible for build in comparison.builds):
        entries.append((key_mark(INELIGIBLE), "misses its gates, or is not finished"))
    keys = [f"<span>{sign}{escape(label)}</span>" for sign, label in entries]
    if by is not None:
        keys.append(f'<span class="by">{escape(by.key)}:</span>')
        keys += [
            f"<span>{key_mark('', number)}{escape(_truncate(value))}</span>"
            for number, value in enumerate(sorted(set(by.values)))
        ]
    return f'<p class="legend">{"".join(keys)}</p>'


def _plots(comparison: Comparison, look: Look) -> str:
    accuracies = resolve_columns("accuracy", comparison.columns)
    against = [column for name in _PLOTTED_AGAINST for column in _varying(name, comparison)]
    plot_figures = []
    for y in accuracies:
        for x in against:
            have = [build for build in comparison.builds if x.value(build) is not None and y.value(build) is not None]
            if len(have) > 1 and len({x.value(build) for build in have}) > 1:
                caption = numbers.title(y, with_source=False) + " against " + numbers.title(x)
                source = comparison.source_label(y)
                caption += f", {source}" if source else ""
                kinds = f"{y.kind}" if x.kind is y.kind else f"{y.kind}; {x.kind}"
                plot_figures.append(
                    f"<figure><figcaption><b>{escape(caption)}</b><small>{escape(kinds)}</small></figcaption>"
                    f"{scatter(comparison.builds, x, y, look)}</figure>"
                )
    if not plot_figures:
        return "<p>Accuracy is the only metric in which the builds differ.</p>"
    more = (
        f'<p class="hint">{len(plot_figures) - MAX_PLOTS} more plots are left out.</p>'
        if len(plot_figures) > MAX_PLOTS
        else ""
    )
    hint = (
        '<p class="hint">Vertical bars: 95 % intervals. The dashed line joins the builds that no other beats in the '
        "two metrics of the plot. Point at a mark for the build, click to keep it.</p>"
    )
    return f'{hint}<div class="plots">{"".join(plot_figures[:MAX_PLOTS])}</div>{more}'


def _varying(alias: str, comparison: Comparison) -> list[Column]:
    """The columns of the first metric that a word is short for and in which builds differ."""
    for metric in ALIASES[alias]:
        columns = [column for column in comparison.columns if column.metric == metric and comparison.varies(column)]
        if columns:
            return columns
    return []


def _parallel(comparison: Comparison, look: Look) -> str:
    chosen = [column for column in shown_columns(comparison) if comparison.varies(column)]
    if len(comparison.builds) < 2 or len(comparison.parameters) + len(chosen) < 2:
        return "<p>The builds differ in too little for this.</p>"
    hint = '<p class="hint">The better end of a metric is at the top. Pareto-optimal builds are drawn strong.</p>'
    return f'{hint}<div class="scroll">{parallel(comparison.builds, comparison.parameters, chosen, look)}</div>'


def _links(comparison: Comparison, folder: Path | None) -> dict[str, list[tuple[str, str]]]:
    """By label what can be opened, as (name, address)."""
    return {build.label: list(_links_of(build, folder)) for build in comparison.builds}


def _links_of(build: ComparedBuild, folder: Path | None) -> Iterator[tuple[str, str]]:
    for name, address in build.links.items():
        parts = urlsplit(address)
        if parts.scheme in ("http", "https"):
            yield name, address
        elif folder is not None and parts.scheme in ("", "file"):
            path = url2pathname(parts.path) if parts.scheme else address
            yield name, Path(os.path.relpath(path, folder)).as_posix()


def _left_out(comparison: Comparison) -> str:
    gated = [build for build in comparison.builds if build.state is not State.BUILT]
    rows = [(build.label, str(build.state), build.reason, build.name) for build in (*comparison.not_comparable, *gated)]
    return (
        section("Failed, skipped and not finished", table(("build", "state", "why", "name"), rows, "wide"))
        if rows
        else ""
    )


def _shared(comparison: Comparison) -> str:
    columns = [
        (numbers.title(column), f"{numbers.number(column, column.value(comparison.builds[0]))} {numbers.unit(column)}")
        for column in _common_value(comparison)
    ]
    table_html = f"<h3>Metrics</h3>{table((), columns, 'pairs')}" if columns else ""
    follows = [
        (parameter.key, ", ".join(parameter.follows)) for parameter in comparison.parameters if parameter.follows
    ]
    implied = f"<h3>Differs with a choice</h3>{table((), follows, 'pairs')}" if follows else ""
    shared = table((), sorted(comparison.shared.items()), "pairs")
    return f"{table_html}{implied}<details><summary>{len(comparison.shared)} parameters</summary>{shared}</details>"


def _common_value(comparison: Comparison) -> Sequence[Column]:
    same = [
        column for column in comparison.columns if not comparison.varies(column) and column.kind is not Kind.MEASURED
    ]
    return same if len(comparison.builds) > 1 else []
