"""The report of a build as one HTML file: no script, nothing loaded from anywhere, light and dark."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from lowerdeck.artifacts.evaluation_results import Confusion
from lowerdeck.contracts.plan import DelegationPlan, PlannedNode
from lowerdeck.pages.parts import Markup, page_head, section, table
from lowerdeck.report import summary
from lowerdeck.report.build import Build
from lowerdeck.report.quantization import HEADER, tensor_rows

MAX_MATRIX_CLASSES = 40
"""With more classes the most frequent mistakes are listed in place of the matrix."""
NUM_MISTAKES = 30
MAX_ROWS = 40
"""Rows of classes and of layers that are not folded away."""
NO_REASON = "no reason given"


def render(build: Build) -> str:
    """The page for `build`."""
    title = f"{build.config.model.name} on {build.config.target.name}"
    caveat = build.manifest["converter"]["caveat"]
    parts = [
        page_head(title),
        "<main>",
        f'<header><p class="kind">Lowerdeck build report</p><h1>{escape(title)}</h1></header>',
        f'<p class="caveat" role="note">{escape(caveat)}</p>' if caveat else "",
        section("Metrics", _metrics_section(build)),
        section(summary.confusion_title(build.metrics), _confusion(build.confusion)) if build.confusion else "",
        section("Classes", _classes(build)) if build.classes else "",
        section("Layers", _layers(build)) if build.layers else "",
        section("Quantization", _quantization(build)) if build.tensors else "",
        section("Delegation plan", _plan(build.plan)),
        section("Lineage", _lineage(build.lineage)),
        section("Configuration", _configuration(build)),
        "</main></body></html>",
    ]
    return "\n".join(part for part in parts if part) + "\n"


def _metrics_section(build: Build) -> str:
    tiles = "".join(
        f'<div class="tile"><h3>{escape(name)}</h3><b>{escape(large)}</b><span>{escape(small)}</span></div>'
        for name, large, small in _tiles(build.metrics)
    )
    rows = summary.rows(build.config, build.metrics, build.manifest)
    rows += summary.estimates(build.metrics, build.manifest["converter"]["flavor"])
    rows += [*summary.comparisons(build.metrics), ("executed by", str(build.metrics.get("executed_by", "unknown")))]
    shown = {name for name, _, _ in _tiles(build.metrics)}
    unique = dict(row for row in rows if row[0] not in shown)
    return f'<div class="tiles">{tiles}</div>' + table((), list(unique.items()), "pairs")


def _tiles(measured: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """The metrics that are looked for first, each as (name, what is set large, what is set small below it)."""
    tiles = []
    for program in ("float", "quantized", "delegated"):
        large, of, small = summary.accuracy(measured, program).partition(" of ")
        tiles.append((f"{program} accuracy", large, (of + small).strip()))
    nodes, _, partitions = summary.delegation(measured).partition(" in ")
    size_bytes = measured["program_bytes"]
    tiles.append(("delegated nodes", nodes, f"in {partitions}"))
    tiles.append(("size", f"{size_bytes / 1024:,.1f} KiB", f"{size_bytes:,} bytes"))
    return tiles


def _confusion(confusion: Confusion) -> str:
    if len(confusion.labels) > MAX_MATRIX_CLASSES:
        return _mistakes(confusion)
    head = "".join(f'<th scope="col">{escape(label)}</th>' for label in confusion.labels)
    body = ""
    for row, actual in enumerate(confusion.labels):
        total = max(1, sum(confusion.counts[row]))
        cells = ""
        for column, count in enumerate(confusion.counts[row]):
            # Mistakes are few, hence the root: one of a hundred is to be seen.
            strength = count / total if row == column else (count / total) ** 0.5
            kind = "right" if row == column else "wrong"
            shade = f' class="{kind}" style="--share:{100 * strength:.0f}%"' if count else ' class="zero"'
            cells += f"<td{shade}>{count}</td>"
        body += f'<tr><th scope="row">{escape(actual)}</th>{cells}</tr>'
    return (
        '<p class="hint">Rows: actual class. Columns: predicted class.</p><div class="scroll"><table class="matrix">'
        f"<thead><tr><td></td>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _mistakes(confusion: Confusion) -> str:
    pairs = Counter(
        {
            (actual, predicted): confusion.counts[row][column]
            for row, actual in enumerate(confusion.labels)
            for column, predicted in enumerate(confusion.labels)
            if row != column and confusion.counts[row][column]
        }
    )
    rows = [(actual, predicted, count) for (actual, predicted), count in pairs.most_common(NUM_MISTAKES)]
    hint = f"{len(confusion.labels)} classes; the most frequent mistakes, of {sum(pairs.values()):,} in all."
    return f'<p class="hint">{hint}</p>' + table(("actual", "predicted", "samples"), rows)


def _classes(build: Build) -> str:
    """Accuracy by class, the classes first that the most real program recognizes worst."""
    programs = list(build.classes[0].accuracies)
    ordered = sorted(build.classes, key=lambda entry: entry.accuracies[programs[-1]][0])
    rows: list[tuple[Any, ...]] = []
    for entry in ordered:
        cells = [
            f"{100 * value:.1f} % ({100 * low:.0f} to {100 * high:.0f})"
            for value, low, high in (entry.accuracies[program] for program in programs)
        ]
        rows.append((entry.label, entry.num_samples, *cells))
    hint = f'<p class="hint">In brackets: 95 % interval. Worst of the {escape(programs[-1])} program first.</p>'
    return hint + _fold_rows(("class", "samples", *programs), rows)


def _layers(build: Build) -> str:
    """Signal to noise ratio layer by layer, as bars."""
    most_db = max(layer.sqnr_db for layer in build.layers)
    rows: list[tuple[Any, ...]] = []
    for layer in build.layers:
        share = 100 * max(0.0, layer.sqnr_db) / most_db if most_db > 0 else 0
        bar = Markup(f'<div class="bar" style="--share:{share:.0f}%">{layer.sqnr_db:.1f} dB</div>')
        lsb = "" if layer.lsb is None else f"{layer.lsb:.4g}"
        rows.append((layer.node, bar, layer.operator, layer.module, lsb))
    hint = (
        '<p class="hint">Signal to quantization noise of every tensor that the quantized program holds in integers, '
        f"against the float program, on {build.layers[0].num_samples} samples. Worst first.</p>"
    )
    return hint + _fold_rows(("node", "SQNR", "operator", "module", "LSB"), rows)


def _quantization(build: Build) -> str:
    """Scales, ranges and losses, tensor by tensor."""
    rows = tensor_rows(build.tensors, build.layers)
    hint = (
        '<p class="hint">All tensors in integers, worst first. SQNR: of activations against the float program, with '
        "all that was lost before them; of weights by their own quantization. Observed: on the calibration samples. "
        "Clipped: share of observed values that lie beyond the representable ones by more than half a step.</p>"
    )
    return hint + _fold_rows(HEADER, [row.cells() for row in rows])


def _fold_rows(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A table whose rows after the first MAX_ROWS are folded away."""
    worst = table(header, rows[:MAX_ROWS])
    if len(rows) <= MAX_ROWS:
        return worst
    rest = table(header, rows[MAX_ROWS:])
    return f"{worst}<details><summary>{len(rows) - MAX_ROWS} more</summary>{rest}</details>"


def _plan(plan: DelegationPlan) -> str:
    left = [node for node in plan.nodes if node.compute and node.partition is None]
    operators = Counter(node.operator for node in plan.nodes if node.compute)
    delegated = Counter(node.operator for node in plan.nodes if node.compute and node.partition is not None)
    by_operator = [(name, count, delegated[name], count - delegated[name]) for name, count in operators.most_common()]
    content = f"<p>{escape(plan.summary)}.</p>"
    if left:
        content += "<h3>Not delegated, by reason</h3>" + table(
            ("reason", "operator", "nodes", "where"), _by_reason(left), "wide"
        )
    content += "<h3>Operators</h3>" + table(("operator", "nodes", "delegated", "not delegated"), by_operator)
    content += "<h3>Partitions</h3>" + table(
        ("partition", "compute nodes", "MACs", "operators"), _by_partition(plan), "wide"
    )
    rows = [
        (node.name, node.operator, *_where(node), f"{node.macs:,}" if node.macs else "")
        for node in plan.nodes
        if node.compute
    ]
    nodes = table(("node", "operator", "partition", "module", "line", "MACs"), rows)
    return content + f"<details><summary>All {len(rows)} compute nodes</summary>{nodes}</details>"


def _by_reason(nodes: Sequence[PlannedNode]) -> list[tuple[str, str, int, str]]:
    groups: dict[tuple[str, str], list[str]] = {}
    for node in nodes:
        groups.setdefault((str(node.reason or NO_REASON), node.operator), []).append(node.module or node.name)
    ordered = sorted(groups.items(), key=lambda group: (-len(group[1]), group[0]))
    return [(reason, operator, len(where), ", ".join(where)) for (reason, operator), where in ordered]


def _where(node: PlannedNode) -> tuple[str, str, str]:
    """Where it runs, and which part and line of the model it comes from."""
    return node.partition or f"CPU: {node.reason or NO_REASON}", node.module, node.source


def _by_partition(plan: DelegationPlan) -> list[tuple[str, int, str, str]]:
    rows = []
    for partition in plan.partitions:
        nodes = [node for node in plan.nodes if node.compute and node.partition == partition]
        operators = Counter(node.operator for node in nodes)
        listed = ", ".join(f"{count} x {operator}" for operator, count in operators.most_common())
        rows.append((partition, len(nodes), f"{sum(node.macs for node in nodes):,}", listed))
    return rows


def _lineage(lineage: Mapping[str, Any] | None) -> str:
    if lineage is None:
        return "<p>Not recorded yet: the stage track writes the lineage; <code>dvc repro</code> runs it.</p>"
    rows = [
        (link["name"], link["what"], _made_by(link), ", ".join(link["from"]), _code(link["sha256"]))
        for link in lineage["links"]
    ]
    versions = [(f"version of {name}", version) for name, version in lineage["versions"].items()]
    facts = [*versions, ("build key", _code(lineage["build_key"]))]
    return table(("link", "what", "made by", "from", "SHA-256"), rows, "chain") + table((), facts, "pairs")


def _made_by(link: Mapping[str, Any]) -> str:
    converter = link.get("converter")
    return f"{link['made_by']}, {converter['name']} {converter['version']}" if converter else str(link["made_by"])


def _code(text: str) -> Markup:
    return Markup(f"<code>{escape(text)}</code>")


def _configuration(build: Build) -> str:
    rows = [(_code(key), _code(json.dumps(value, ensure_ascii=False))) for key, value in _flat(build.config)]
    return table((), rows, "pairs")


def _flat(config: Any) -> Iterable[tuple[str, Any]]:
    pending: list[tuple[str, Any]] = list(dataclasses.asdict(config).items())
    while pending:
        key, value = pending.pop(0)
        if isinstance(value, dict) and value:
            pending[:0] = [(f"{key}.{name}", inner) for name, inner in value.items()]
        else:
            yield key, value
