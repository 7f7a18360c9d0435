"""Values of the page's tables: builds, their metrics by flavor, and the effects of options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lowerdeck.comparison import formatting
from lowerdeck.comparison.builds import ComparedBuild
from lowerdeck.comparison.columns import Column, Kind
from lowerdeck.comparison.comparison import Comparison
from lowerdeck.comparison.effects import Effect, MetricChange
from lowerdeck.comparison.marks import Mark, is_better, marks
from lowerdeck.comparison.parameters import Parameter, differing
from lowerdeck.comparison.pareto import Standing
from lowerdeck.comparison.terminal import shown_columns
from lowerdeck.pages.comparison.plots import Look

SIGNS = {Mark.BEST: "★", Mark.TIED: "≈"}
MAX_OPEN_ROWS = 40
"""Most rows of an unfolded table, except for the table of all builds."""
MAX_UNFOLDED_BUILDS = 10
"""Most builds whose targets start unfolded."""
MAX_EFFECTS = 200


def builds_table(comparison: Comparison, look: Look, links: Mapping[str, Sequence[tuple[str, str]]]) -> dict[str, Any]:
    """All builds by target, for the script to fold, sort and filter."""
    builds, columns = comparison.builds, shown_columns(comparison)
    parameters = [parameter for parameter in comparison.parameters if parameter.key != "target"]
    content = _table(comparison, look, builds, parameters, columns, comparison.marks)
    groups: dict[str, list[dict[str, Any]]] = {}
    for row, build in zip(content["rows"], builds, strict=True):
        row["style"] = look.style(build) if build.is_eligible else ""
        row["links"] = links[build.label]
        row["choices"] = [
            list(dict.fromkeys(one.get(key, "") for one in comparison.configurations[build.label]))
            for key in content["parameters"]
        ]
        row["same"] = [
            f"{other.label}: {', '.join(f'{key}={value}' for key, value in parameters.items())}"
            for other, parameters in zip(build.identical, comparison.configurations[build.label][1:], strict=True)
        ]
        groups.setdefault(build.target, []).append(row)
    return content | {
        "has_files": any(links.values()),
        "groups": [(target or "unknown target", rows) for target, rows in groups.items()],
        "width": 1 + len(parameters) + len(columns) + any(links.values()),
        "is_folded": len(builds) > MAX_UNFOLDED_BUILDS and len(groups) > 1,
    }


def flavor_tables(comparison: Comparison, look: Look) -> list[dict[str, Any]]:
    """For each compiler, the metrics that only it reports, ranked among its own builds."""
    tables = []
    for compiler in sorted({build.compiler for build in comparison.builds}):
        mine = [build for build in comparison.builds if build.compiler == compiler]
        fit = [build for build in mine if build.is_eligible]
        available = [column for column in comparison.columns if any(column.value(build) is not None for build in mine)]
        columns = [
            column
            for column in available
            if column in comparison.objective_columns
            or (column.source == compiler and column.kind is not Kind.MEASURED)
        ]
        found = {column: marks(column, fit, {}) if column.kind is not Kind.MEASURED else {} for column in columns}
        counted = "1 build" if len(mine) == 1 else f"{len(mine)} builds"
        tables.append(
            _table(comparison, look, mine, differing(mine), columns, found)
            | {"heading": f"{compiler or 'flavor not recorded'}: {counted}", "is_open": len(mine) <= MAX_OPEN_ROWS}
        )
    return tables


def effects_tables(comparison: Comparison) -> list[dict[str, Any]]:
    """For each parameter, the changes of the metrics between builds that differ only in it."""
    chosen = [column for column in shown_columns(comparison) if column.direction is not None]
    by_parameter: dict[str, list[Effect]] = {}
    for effect in comparison.effects[:MAX_EFFECTS]:
        by_parameter.setdefault(effect.parameter, []).append(effect)
    tables = []
    for parameter, group in by_parameter.items():
        columns = [column for column in chosen if any(column in effect.changes for effect in group)]
        changes = [[_change(column, effect.changes.get(column)) for column in columns] for effect in group]
        rows = [
            (effect.before, effect.after, effect.num_pairs, cells) for effect, cells in zip(group, changes, strict=True)
        ]
        heads = [_column_head(comparison, column) for column in columns]
        tables.append({"parameter": parameter, "columns": heads, "rows": rows})
    return tables


def _table(
    comparison: Comparison,
    look: Look,
    builds: Sequence[ComparedBuild],
    parameters: Sequence[Parameter],
    columns: Sequence[Column],
    found: Mapping[Column, Mapping[str, Mark]],
) -> dict[str, Any]:
    rows = [
        _name(comparison, build, look)
        | {
            "parameters": [parameter.values[number] for parameter in parameters],
            "cells": [_number(column, build, found[column].get(build.label)) for column in columns],
        }
        for number, build in enumerate(builds)
    ]
    heads = [_column_head(comparison, column) for column in columns]
    keys = [parameter.key for parameter in parameters]
    return {"parameters": keys, "columns": heads, "rows": rows, "has_files": False}


def _column_head(comparison: Comparison, column: Column) -> dict[str, Any]:
    return {
        "title": formatting.title(column, with_source=False),
        "subtitle": ", ".join(part for part in (comparison.source_label(column), formatting.unit(column)) if part),
        "kind": column.kind,
        "is_objective": column in comparison.objective_columns,
    }


def _name(comparison: Comparison, build: ComparedBuild, look: Look) -> dict[str, Any]:
    standing = comparison.standings.get(build.label)
    order = {None: 2, Standing.WITHIN_NOISE: 1, Standing.OPTIMAL: 0}[standing] if build.is_eligible else 3
    status = standing or ("" if build.is_eligible else f"{build.state}: {build.reason}")
    return {
        "number": look.rows[build.label],
        "label": build.label,
        "title": f"{build.name}{f': {status}' if status else ''}",
        "order": order,
        "look": look.style(build),
        "is_recommended": build.label in comparison.recommended,
    }


def _number(column: Column, build: ComparedBuild, mark: Mark | None) -> dict[str, Any]:
    value = column.value(build)
    if value is None:
        return {"value": None, "why": build.texts.get(column.metric, "") or "not known"}
    return {
        "value": value,
        "text": formatting.value(column, build),
        "interval": formatting.interval(column, column.interval(build)),
        "mark": mark,
    }


def _change(column: Column, change: MetricChange | None) -> dict[str, Any] | None:
    if change is None:
        return None
    assert column.direction is not None
    text = formatting.number(column, change.mean, signed=True)
    if change.num_distinct == 0 or not text.strip("+0.,"):  # a mean of 0 is neither better nor worse
        sign, style = "≈" if change.has_interval else "", "none"
    else:
        better = is_better(change.mean, 0.0, column.direction)
        sign, style = ("▲", "better") if better else ("▼", "worse")
    ends = ""
    if change.has_interval:
        ends = formatting.interval(column, (change.low, change.high), signed=True)
    elif change.low != change.high:
        ends = " to ".join(formatting.number(column, end, signed=True) for end in (change.low, change.high))
    return {"sign": sign, "style": style, "text": text, "range": ends}
