"""The page of a comparison as one self-contained HTML file, complete even without its script."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from lowerdeck.comparison import conclusions, formatting
from lowerdeck.comparison.builds import ComparedBuild, State
from lowerdeck.comparison.columns import Column, Kind, resolve_columns
from lowerdeck.comparison.comparison import Comparison
from lowerdeck.comparison.marks import Mark
from lowerdeck.comparison.parameters import Parameter
from lowerdeck.comparison.pareto import Standing
from lowerdeck.comparison.terminal import shown_columns
from lowerdeck.pages import rendering
from lowerdeck.pages.comparison.parallel import natural, parallel
from lowerdeck.pages.comparison.plots import INELIGIBLE, Look, scatter
from lowerdeck.pages.comparison.tables import SIGNS, builds_table, effects_tables, flavor_tables

MAX_COLORS = 7
MAX_PLOTS = 8
MAX_CHOICES = 40
"""Most values of a parameter that the page offers as choices; others are found by typing."""
_NEWER = ("report", "explanation")
"""Files that runs of older versions do not have."""
_PLOTTED_AGAINST = ("ram", "time", "size", "coverage", "memory")


def render(comparison: Comparison, title: str, folder: Path | None) -> str:
    """The page.

    Args:
        comparison: The comparison to show.
        title: Description of what was compared.
        folder: Folder of the page, for relative links to local files; None links to servers only.
    """
    by, look = _look(comparison)
    builds, parameters = comparison.builds, comparison.parameters
    effects = effects_tables(comparison)
    alone = {effect["parameter"] for effect in effects}
    unfinished = [*comparison.not_comparable, *(build for build in builds if build.state is not State.BUILT)]
    return rendering.render(
        "comparison",
        title=title,
        caveats=sorted({caveat for build in builds if (caveat := build.texts.get("converter.caveat")) is not None}),
        conclusions=conclusions.all_conclusions(comparison),
        objective=", ".join(map(str.strip, comparison.objective)),
        sentences=conclusions.sentences(comparison),
        choices=_choices(comparison),
        legend=_legend(comparison),
        colors=by,
        plots=_plots(comparison, look),
        no_trade=_no_trade(comparison),
        max_plots=MAX_PLOTS,
        parallel=_parallel(comparison, look),
        signs=SIGNS,
        best=Mark.BEST,
        tied=Mark.TIED,
        builds=builds_table(comparison, look, {build.label: list(_links_of(build, folder)) for build in builds}),
        flavors=flavor_tables(comparison, look),
        effects=effects,
        never_alone=[parameter.key for parameter in parameters if parameter.key not in alone],
        left_out=[(build.label, str(build.state), build.reason, build.name) for build in unfinished],
        same_metrics=[
            (
                formatting.title(column),
                f"{formatting.number(column, column.value(builds[0]))} {formatting.unit(column)}",
            )
            for column in comparison.columns
            if len(builds) > 1 and not comparison.varies(column) and column.kind is not Kind.MEASURED
        ],
        follows=[(parameter.key, ", ".join(parameter.follows)) for parameter in parameters if parameter.follows],
        shared=sorted(comparison.shared.items()),
    )


def _choices(comparison: Comparison) -> list[tuple[str, list[str]]]:
    """(parameter, its values) to choose from."""
    every = [one for found in comparison.configurations.values() for one in found]
    values = {
        parameter.key: sorted({one[parameter.key] for one in every}, key=natural) for parameter in comparison.parameters
    }
    return [(key, found) for key, found in values.items() if 1 < len(found) <= MAX_CHOICES]


def _look(comparison: Comparison) -> tuple[Parameter | None, Look]:
    """The parameter shown as colours, and the look of the builds."""
    few = [parameter for parameter in comparison.parameters if len(set(parameter.values)) <= MAX_COLORS]
    by = next((parameter for parameter in few if parameter.key == "target"), few[0] if few else None)
    values = sorted(set(by.values)) if by else []
    rows = {build.label: row for row, build in enumerate(comparison.builds)}
    colors = {label: values.index(by.values[row]) if by else 0 for label, row in rows.items()}
    return by, Look(rows=rows, colors=colors, standings=comparison.standings)


def _legend(comparison: Comparison) -> list[tuple[str, str]]:
    """(CSS class, meaning) of the marks."""
    entries = [("optimal", str(Standing.OPTIMAL)), ("", "other builds")]
    if Standing.WITHIN_NOISE in comparison.standings.values():
        entries.insert(1, ("within_noise", str(Standing.WITHIN_NOISE)))
    if not all(build.is_eligible for build in comparison.builds):
        entries.append((INELIGIBLE, "misses its gates, has a defect, or is not finished"))
    return entries


def _plots(comparison: Comparison, look: Look) -> list[dict[str, Any]]:
    plots = []
    for y in resolve_columns("quality", comparison.columns):
        for x in (column for name in _PLOTTED_AGAINST for column in _varying(name, comparison)):
            have = [build for build in comparison.builds if x.value(build) is not None and y.value(build) is not None]
            if all(len({column.value(build) for build in have}) > 1 for column in (x, y)):
                caption = formatting.title(y, with_source=False) + " against " + formatting.title(x)
                source = comparison.source_label(y)
                caption += f", {source}" if source else ""
                kinds = f"{y.kind}" if x.kind is y.kind else f"{y.kind}; {x.kind}"
                plots.append(scatter(comparison.builds, x, y, look) | {"caption": caption, "kinds": kinds})
    return plots


def _no_trade(comparison: Comparison) -> str:
    """Why there is no plot, where there is none: in which of the metrics that are plotted the builds differ."""
    quality = resolve_columns("quality", comparison.columns)
    others = [column for name in _PLOTTED_AGAINST for column in _varying(name, comparison)]
    titles = " and ".join(dict.fromkeys(formatting.title(column, with_source=False) for column in others))
    if not quality:
        return f"No build has a metric of quality; they differ in {titles or 'nothing that would be traded for it'}."
    name = formatting.title(quality[0], with_source=False)
    if not any(comparison.varies(column) for column in quality):
        return f"Nothing is traded: {name} is the same in all builds. They differ in {titles or 'no cost either'}."
    if not titles:
        return f"Nothing is traded: the builds differ in {name} and in no cost."
    return f"Nothing can be drawn: no two builds have both {name} and {titles}, with different values of each."


def _varying(alias: str, comparison: Comparison) -> list[Column]:
    """The columns of the first metric of `alias` in which builds differ."""
    return resolve_columns(alias, [column for column in comparison.columns if comparison.varies(column)])


def _parallel(comparison: Comparison, look: Look) -> dict[str, Any] | None:
    chosen = [column for column in shown_columns(comparison) if comparison.varies(column)]
    if len(comparison.builds) < 2 or len(comparison.parameters) + len(chosen) < 2:
        return None
    return parallel(comparison.builds, comparison.parameters, chosen, look)


def _links_of(build: ComparedBuild, folder: Path | None) -> Iterator[tuple[str, str]]:
    for name, address in build.links.items():
        parts = urlsplit(address)
        if parts.scheme in ("http", "https"):
            yield name, address
        elif folder is not None and parts.scheme in ("", "file"):
            path = url2pathname(parts.path) if parts.scheme else address
            if name in _NEWER and not Path(path).is_file():
                continue
            yield name, Path(os.path.relpath(path, folder)).as_posix()
