"""The report of a build as one self-contained HTML file without scripts, in light and dark."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from lowerdeck.artifacts.evaluation_results import Confusion
from lowerdeck.contracts.plan import DelegationPlan, PlannedNode
from lowerdeck.evaluation.defects import defects
from lowerdeck.pages import report_drawings, task_section
from lowerdeck.pages.rendering import render as render_page
from lowerdeck.report import summary
from lowerdeck.report.build import Build, identity
from lowerdeck.report.overview import overview
from lowerdeck.report.quantization import HEADER, tensor_rows
from lowerdeck.tracking.content import flat

MAX_MATRIX_CLASSES = 40
"""Most classes with a matrix; with more, the most frequent mistakes are listed instead."""
NUM_MISTAKES = 30
MAX_ROWS = 40
"""Most rows of classes and of layers that are shown unfolded."""
NO_REASON = "no reason given"
DELEGATED, PORTABLE_KERNELS = "delegated", "portable kernels"


def render(build: Build, *, has_comparison: bool = False) -> str:
    """The page for `build`.

    Its links are relative: they work in build/ and among the artifacts of an MLflow run.

    Args:
        build: The build.
        has_comparison: Whether compare.html stands beside the page. explain.html always does, firmware.zip if the build
            was recorded.
    """
    first = overview(build)
    mistakes = _mistakes(build.confusion) if build.confusion else None
    configuration = flat(dataclasses.asdict(build.config))
    return render_page(
        "report",
        title=f"{build.config.model.name} on {build.config.target.name}",
        caveats=[
            *(f"Do not ship: this build {defect}" for defect in defects(build.metrics)),
            *filter(None, [build.manifest["converter"]["caveat"]]),
        ],
        verdict=first.verdict,
        identity=identity(build.config, build.manifest),
        links=_links(has_comparison, has_bundle=build.lineage is not None),
        run_page=build.run_page,
        quality_name=first.quality_name,
        quality_picture=report_drawings.quality_picture(first.quality, is_share=first.is_share),
        memory_picture=report_drawings.memory_picture(first.memory),
        graph_picture=report_drawings.graph_picture(build.plan),
        range_picture=report_drawings.range_picture(first.ranges),
        profile=_profile(build),
        tiles=_tiles(build.metrics),
        metrics=_metrics(build),
        confusion=build.confusion,
        confusion_title=summary.confusion_title(build.metrics),
        mistakes=mistakes,
        most_frequent=[(*pair, count) for pair, count in mistakes.most_common(NUM_MISTAKES)] if mistakes else [],
        task=task_section.values(build.pictures),
        max_rows=MAX_ROWS,
        programs=list(build.classes[0].accuracies) if build.classes else [],
        classes=_classes(build),
        layers=build.layers,
        most_db=max((layer.sqnr_db for layer in build.layers), default=0.0),
        tensor_header=HEADER,
        tensors=[row.cells() for row in tensor_rows(build.tensors, build.layers)] if build.tensors else [],
        lineage=build.lineage,
        configuration=[(key, json.dumps(value, ensure_ascii=False)) for key, value in configuration],
        **_plan(build.plan),
    )


def _links(has_comparison: bool, has_bundle: bool) -> list[tuple[str, str]]:
    """(name, address) of the other pages and files of the build."""
    bundle = [("bundle for firmware", "firmware.zip")] if has_bundle else []
    comparison = [("comparison of builds", "compare.html")] if has_comparison else []
    return [("explanation of the plan", "explain.html"), *bundle, *comparison]


def _profile(build: Build) -> list[dict[str, Any]]:
    """Layers by cycles, each with the SQNR of the tensor of its name."""
    most = max((layer.cycles for layer in build.profile), default=0)
    sqnr_db = {layer.node: layer.sqnr_db for layer in build.layers}
    return [
        {
            "name": layer.name,
            "cycles": layer.cycles,
            "share": f"{100 * layer.cycles / most:.0f}" if most else "0",
            "sram_bytes": layer.sram_bytes,
            "sqnr_db": sqnr_db.get(layer.name),
        }
        for layer in sorted(build.profile, key=lambda layer: -layer.cycles)
    ]


def _metrics(build: Build) -> list[tuple[str, str]]:
    """The metrics below the tiles, by name, without those of the tiles."""
    rows = summary.rows(build.config, build.metrics, build.manifest)
    rows += summary.estimates(build.metrics, build.manifest["converter"]["flavor"])
    rows += summary.comparisons(build.metrics)
    for name, metric in (("executed by", "executed_by"), ("baseline executed by", "baseline_executed_by")):
        rows.append((name, str(build.metrics.get(metric, "unknown"))))
    shown = {name for name, _, _ in _tiles(build.metrics)}
    return list(dict(row for row in rows if row[0] not in shown).items())


def _tiles(measured: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """The most important metrics, as (name, large text, small text)."""
    tiles = []
    for name, text in summary.quality(measured):
        large, of, small = text.partition(" of ")
        tiles.append((name, large, (of + small).strip()))
    nodes, _, partitions = summary.delegation(measured).partition(" in ")
    size_bytes = measured["program_bytes"]
    tiles.append(("delegated nodes", nodes, f"in {partitions}"))
    tiles.append(("size", f"{size_bytes / 1024:,.1f} KiB", f"{size_bytes:,} bytes"))
    return tiles


def _mistakes(confusion: Confusion) -> Counter[tuple[str, str]] | None:
    """(actual, predicted) class -> number of mistakes; None if the matrix is shown."""
    if len(confusion.labels) <= MAX_MATRIX_CLASSES:
        return None
    return Counter({pair: count for pair, count in confusion.pairs.items() if pair[0] != pair[1]})


def _classes(build: Build) -> list[tuple[str | int, ...]]:
    """Accuracy by class, worst first by the last program, which is the closest to the device."""
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
    where = Counter((node.operator, _executor(node)) for node in computing)
    executors = (DELEGATED, *plan.places[len(plan.partitions) :], PORTABLE_KERNELS)
    return {
        "plan": plan,
        "by_reason": _by_reason([node for node in computing if node.is_portable]),
        "executors": executors,
        "by_operator": [
            (name, count, *(where[name, executor] for executor in executors)) for name, count in operators.most_common()
        ],
        "by_partition": _by_partition(plan),
        "nodes": [_node(node) for node in computing],
    }


def _executor(node: PlannedNode) -> str:
    """Who computes a node: the delegate in any of its partitions, a kernel library, or portable kernels."""
    if node.partition is not None:
        return DELEGATED
    return PORTABLE_KERNELS if node.is_portable else node.place


def _by_reason(nodes: Sequence[PlannedNode]) -> list[tuple[str, str, int, str]]:
    groups: dict[tuple[str, str], list[str]] = {}
    for node in nodes:
        groups.setdefault((str(node.reason or NO_REASON), node.operator), []).append(node.module or node.name)
    ordered = sorted(groups.items(), key=lambda group: (-len(group[1]), group[0]))
    return [(reason, operator, len(where), ", ".join(where)) for (reason, operator), where in ordered]


def _node(node: PlannedNode) -> tuple[str, ...]:
    where = f"CPU: {node.reason or NO_REASON}" if node.is_portable else node.place
    return node.name, node.operator, where, node.module, node.source, f"{node.macs:,}" if node.macs else ""


def _by_partition(plan: DelegationPlan) -> list[tuple[str, int, str, str]]:
    rows = []
    for partition in plan.partitions:
        nodes = [node for node in plan.nodes if node.compute and node.partition == partition]
        operators = Counter(node.operator for node in nodes)
        listed = ", ".join(f"{count} x {operator}" for operator, count in operators.most_common())
        rows.append((partition, len(nodes), f"{sum(node.macs for node in nodes):,}", listed))
    return rows
