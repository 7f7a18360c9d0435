"""The comparison for other programs: JSON with everything, CSV with one row per program, Markdown for a review."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

from lowerdeck.comparison import formatting
from lowerdeck.comparison.columns import Column
from lowerdeck.comparison.comparison import Comparison
from lowerdeck.comparison.conclusions import all_conclusions
from lowerdeck.comparison.terminal import shown_columns
from lowerdeck.evaluation.intervals import HIGH, LOW
from lowerdeck.formats.markdown import plain_text


def as_json(comparison: Comparison) -> str:
    """Builds, metrics with kind and source, marks, standings and the effects of each option."""
    return json.dumps(_plain(comparison), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _plain(comparison: Comparison) -> dict[str, Any]:
    return {
        "objectives": [
            {"metric": objective.metric, "direction": objective.direction, "tolerance": objective.tolerance}
            for objective in comparison.objectives
        ],
        "recommendations": [
            dict(conclusion) | {"runner_up": None if it.runner_up is None else it.runner_up.label}
            for conclusion, it in zip(all_conclusions(comparison), comparison.recommendations, strict=True)
        ],
        "parameters": [
            {"key": parameter.key, "values": sorted(set(parameter.values)), "follows": list(parameter.follows)}
            for parameter in comparison.parameters
        ],
        "shared": dict(sorted(comparison.shared.items())),
        "metrics": [_column(column) for column in comparison.columns],
        "builds": [
            {
                "build": build.label,
                "run_id": build.run_id,
                "name": build.name,
                "state": build.state,
                "reason": build.reason,
                "pareto": comparison.standings.get(build.label),
                "recommended": build.label in comparison.recommended,
                "configurations": [
                    {"build": each.label, "run_id": each.run_id, "parameters": dict(parameters)}
                    for each, parameters in zip(
                        (build, *build.identical), comparison.configurations[build.label], strict=True
                    )
                ],
                "program_sha256": build.program_sha256,
                "metrics": dict(sorted(build.metrics.items())),
                "not_measured": dict(sorted(build.texts.items())),
                "compiler": build.compiler,
                "device": build.device,
                "samples": build.samples,
                "marks": {
                    column.metric: marks[build.label]
                    for column, marks in comparison.marks.items()
                    if build.label in marks
                },
            }
            for build in comparison.builds
        ],
        "left_out": [
            {"build": build.label, "name": build.name, "state": build.state, "reason": build.reason}
            for build in comparison.not_comparable
        ],
        "effects": [
            {
                "parameter": effect.parameter,
                "before": effect.before,
                "after": effect.after,
                "pairs": effect.num_pairs,
                "changes": [
                    _column(column)
                    | {
                        "mean": change.mean,
                        "low": change.low,
                        "high": change.high,
                        "ends": "95 % interval" if change.has_interval else "range over the pairs",
                        "pairs_beyond_noise": change.num_distinct,
                    }
                    for column, change in effect.changes.items()
                ],
            }
            for effect in comparison.effects
        ],
    }


def _column(column: Column) -> dict[str, str | None]:
    return {"metric": column.metric, "kind": column.kind, "source": column.source, "better": column.direction}


def as_csv(comparison: Comparison) -> str:
    """One row per program: differing parameters, then metrics; headings of estimates name the compiler."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    heads = ["build", "run_id", "name", "state", "reason", "recommended", "same_program", "pareto"]
    heads += [parameter.key for parameter in comparison.parameters]
    with_interval = {
        column: any(column.interval(build) is not None for build in comparison.builds) for column in comparison.columns
    }
    for column in comparison.columns:
        # Names of metrics begin with their provenance, except for outputs on devices.
        said = f"{column.kind}, {column.source}" if column.metric.startswith("device_") else column.source
        head = f"{column.metric} [{said}]" if said else column.metric
        heads += [head, head + LOW, head + HIGH] if with_interval[column] else [head]
    writer.writerow(heads)
    for row, build in enumerate(comparison.builds):
        cells: list[Any] = [build.label, build.run_id or "", build.name, build.state, build.reason]
        cells += ["yes" if build.label in comparison.recommended else "", " ".join(b.label for b in build.identical)]
        cells.append(comparison.standings.get(build.label, ""))
        cells += [parameter.values[row] for parameter in comparison.parameters]
        for column in comparison.columns:
            cells.append(_cell(column.value(build)))
            if with_interval[column]:
                cells += [_cell(end) for end in column.interval(build) or (None, None)]
        writer.writerow([_safe(cell) for cell in cells])
    return out.getvalue()


def _cell(value: float | None) -> str:
    return "" if value is None else repr(int(value) if value.is_integer() else value)


def _safe(cell: Any) -> str:
    """The text of `cell`, with an apostrophe if a spreadsheet would read it as a formula."""
    text = str(cell)
    if text[:1] not in ("=", "+", "-", "@") or text == "-":
        return text
    try:
        float(text)
    except ValueError:
        return f"'{text}"
    return text


def as_markdown(comparison: Comparison, title: str) -> str:
    """The recommendation for each target and a table of all programs, as a comment in a review."""
    lines = [f"### {plain_text(title)}: which build to ship", ""]
    for it in all_conclusions(comparison):
        chosen = f"ship `{it['build']}` ({plain_text(it['configuration'])})" if it["build"] else "nothing to ship"
        sentences = [*it["why"], it["beats"], *(f"It loses {loss}." for loss in it["loses"]), *it["caveats"]]
        lines.append(f"- **{plain_text(it['target'])}**: {chosen}. {plain_text(' '.join(filter(None, sentences)))}")
        if it["command"]:
            lines.append(f"  `{it['command']}`")
    columns = shown_columns(comparison)
    heads = ["build", *(parameter.key for parameter in comparison.parameters)]
    heads += [f"{formatting.title(column)} {formatting.unit(column)}".strip() for column in columns]
    lines += ["", f"| {' | '.join(map(plain_text, heads))} |", f"|{' --- |' * len(heads)}"]
    for row, build in enumerate(comparison.builds):
        mark = "**ship** " if build.label in comparison.recommended else ""
        cells = [mark + " = ".join(each.label for each in (build, *build.identical))]
        cells += [plain_text(parameter.values[row]) for parameter in comparison.parameters]
        cells += [formatting.value(column, build) for column in columns]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
