"""The report of a build as one HTML file: no script, nothing loaded from anywhere, light and dark."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lowerdeck.artifacts.evaluation_results import Confusion
from lowerdeck.contracts.plan import DelegationPlan, PlannedNode
from lowerdeck.pages.rendering import render as render_page
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
    mistakes = _mistakes(build.confusion) if build.confusion else None
    return render_page(
        "report",
        title=f"{build.config.model.name} on {build.config.target.name}",
        caveat=build.manifest["converter"]["caveat"],
        tiles=_tiles(build.metrics),
        metrics=_metrics(build),
        confusion=build.confusion,
        confusion_title=summary.confusion_title(build.metrics),
        mistakes=mistakes,
        most_frequent=[(*pair, count) for pair, count in mistakes.most_common(NUM_MISTAKES)] if mistakes else [],
        max_rows=MAX_ROWS,
        programs=list(build.classes[0].accuracies) if build.classes else [],
        classes=_classes(build),
        layers=build.layers,
        most_db=max((layer.sqnr_db for layer in build.layers), default=0.0),
        tensor_header=HEADER,
        tensors=[row.cells() for row in tensor_rows(build.tensors, build.layers)] if build.tensors else [],
        lineage=build.lineage,
        configuration=[(key, json.dumps(value, ensure_ascii=False)) for key, value in _flat(build.config)],
        **_plan(build.plan),
    )


def _metrics(build: Build) -> list[tuple[str, str]]:
    """The metrics below the tiles, by name; what a tile shows is left out."""
    rows = summary.rows(build.config, build.metrics, build.manifest)
    rows += summary.estimates(build.metrics, build.manifest["converter"]["flavor"])
    rows += [*summary.comparisons(build.metrics), ("executed by", str(build.metrics.get("executed_by", "unknown")))]
    shown = {name for name, _, _ in _tiles(build.metrics)}
    return list(dict(row for row in rows if row[0] not in shown).items())


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


def _mistakes(confusion: Confusion) -> Counter[tuple[str, str]] | None:
    """How often which class was taken for which other one; None where the matrix has room."""
    if len(confusion.labels) <= MAX_MATRIX_CLASSES:
        return None
    return Counter(
        {
            (actual, predicted): confusion.counts[row][column]
            for row, actual in enumerate(confusion.labels)
            for column, predicted in enumerate(confusion.labels)
            if row != column and confusion.counts[row][column]
        }
    )


def _classes(build: Build) -> list[tuple[str | int, ...]]:
    """Accuracy by class, the classes first that the most real program recognizes worst."""
    ordered = sorted(build.classes, key=lambda entry: list(entry.accuracies.values())[-1][0])
    return [
        (
            entry.label,
            entry.num_samples,
            *(f"{100 * v:.1f} % ({100 * low:.0f} to {100 * high:.0f})" for v, low, high in entry.accuracies.values()),
        )
        for entry in ordered
    ]


def _plan(plan: DelegationPlan) -> dict[str, Any]:
    computing = [node for node in plan.nodes if node.compute]
    operators = Counter(node.operator for node in computing)
    delegated = Counter(node.operator for node in computing if node.partition is not None)
    return {
        "plan": plan,
        "by_reason": _by_reason([node for node in computing if node.partition is None]),
        "by_operator": [
            (name, count, delegated[name], count - delegated[name]) for name, count in operators.most_common()
        ],
        "by_partition": _by_partition(plan),
        "nodes": [
            (node.name, node.operator, *_where(node), f"{node.macs:,}" if node.macs else "") for node in computing
        ],
    }


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


def _flat(config: Any) -> Iterable[tuple[str, Any]]:
    pending: list[tuple[str, Any]] = list(dataclasses.asdict(config).items())
    while pending:
        key, value = pending.pop(0)
        if isinstance(value, dict) and value:
            pending[:0] = [(f"{key}.{name}", inner) for name, inner in value.items()]
        else:
            yield key, value
