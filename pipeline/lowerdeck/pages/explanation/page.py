"""A delegation plan as one HTML file: its graph, all details of every node, and why some stay on the CPU.

The page is self-contained, allows its only script by digest, and escapes all text of a model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from lowerdeck.contracts.plan import DelegationPlan, PlannedNode
from lowerdeck.delegation.coverage import coverage
from lowerdeck.evaluation.gates import percent
from lowerdeck.explain.causes import Trial, causes
from lowerdeck.explain.costs import NodeCost, Profile
from lowerdeck.explain.graph import PlanGraph
from lowerdeck.explain.groups import MEANINGS, Group, GroupRow, groups, share
from lowerdeck.explain.hints import hint
from lowerdeck.explain.terminal import MISMATCH, folded, format_reason, format_tensor, join_names, trial_text
from lowerdeck.explain.views import views
from lowerdeck.pages import rendering
from lowerdeck.pages.explanation.drawing import BOX_HEIGHT, BOX_WIDTH, draw, hue
from lowerdeck.report.build import RunPage


def render(
    plan: DelegationPlan,
    title: str,
    tried: Sequence[Trial] = (),
    profile: Profile | None = None,
    *,
    has_report: bool = False,
    has_bundle: bool = False,
    run_page: RunPage | None = None,
    digest: str = "",
) -> str:
    """The page for `plan`, e.g. with model and target as the title; equal arguments give equal bytes.

    Args:
        plan: The plan.
        title: What it is the plan of.
        tried: Changes that were tried, with their gain.
        profile: What boxes cost on a device, by which they can be coloured; None where none measured it.
        has_report: Whether report.html of the same build stands beside the page.
        has_bundle: Whether firmware.zip of the same build does.
        run_page: The page of the build's MLflow run; None without one.
        digest: What `tried_in` knows the page by.
    """
    costs = {} if profile is None else profile.of_nodes()
    graph, index_of = PlanGraph(plan), {node.name: index for index, node in enumerate(plan.nodes)}
    number_of = {tag: number for number, tag in enumerate(plan.places, start=1)}
    return rendering.render(
        "explanation",
        title=title,
        caveats=[f"{MISMATCH}: {mismatch}" for mismatch in plan.mismatches],
        tiles=_tiles(plan),
        drawings=[draw(view, index_of, number_of, costs) for view in views(graph)],
        profile=None if profile is None else _profile(profile, plan),
        box_width=BOX_WIDTH,
        box_height=BOX_HEIGHT,
        legend=_legend(plan, index_of, number_of),
        links=[
            *([("report", "report.html")] if has_report else []),
            *([("bundle for firmware", "firmware.zip")] if has_bundle else []),
        ],
        run_page=run_page,
        causes=_causes(graph, tried, index_of),
        reasons=[_reasons(group, index_of, sum(node.macs for node in plan.nodes)) for group in groups(graph)],
        data={
            "nodes": [_node(graph, node, _cost(profile, costs.get(node.name))) for node in plan.nodes],
            "digest": digest,
            "tried": {
                trial.change.text: {"before": trial.before, "after": trial.after, "failure": trial.failure}
                for trial in tried
            },
        },
    )


def tried_in(page: str, plan: DelegationPlan, digest: str) -> list[Trial]:
    """The changes that were tried when `render` returned `page`; none if it was not for `plan` and with `digest`."""
    found = re.search(r'<script type="application/json" id="plan">(.*?)</script>', page)
    data = json.loads(found[1]) if found else {}
    if data.get("digest") != digest:
        return []
    changes = [cause.change for cause in causes(PlanGraph(plan))]
    return [Trial(change=change, **data["tried"][change.text]) for change in changes if change.text in data["tried"]]


def _profile(profile: Profile, plan: DelegationPlan) -> dict[str, Any]:
    """The costliest operators, with the lines of the model that they come from."""
    rows = [
        (row.text, f"{100 * row.share:.1f} %", row.name, ", ".join(row.modules), ", ".join(row.sources))
        for row in profile.costliest(plan)
    ]
    return {"provenance": profile.provenance, "rows": rows}


def _cost(profile: Profile | None, cost: NodeCost | None) -> str:
    if profile is None or cost is None:
        return ""
    others = f", with {cost.num_nodes - 1} other nodes" if cost.num_nodes > 1 else ""
    return f"{profile.text(cost.cost)}, {profile.provenance}{others}"


def _tiles(plan: DelegationPlan) -> list[tuple[str, str, str]]:
    metrics = coverage(plan)
    macs, parameters = int(metrics["total_macs"]), int(metrics["total_parameters"])
    nodes = f"{metrics['delegated_compute_nodes']:,} of {metrics['compute_nodes']:,}"
    crossing = f"{metrics['crossing_bytes']:,} bytes per inference, {metrics['transposes_at_boundary']} transposes"
    return [
        *_library_tiles(metrics, macs),
        ("delegated compute nodes", nodes, percent(metrics["delegated_share"])),
        *([("delegated MACs", percent(metrics["delegated_macs_share"]), f"of {macs:,}")] if macs else []),
        *(
            [("delegated parameters", percent(metrics["delegated_parameter_share"]), f"of {parameters:,}")]
            if parameters
            else []
        ),
        ("partitions", f"{metrics['partitions']:,}", plan.backend),
        ("boundary crossings", f"{metrics['crossings']:,}", crossing),
    ]


def _library_tiles(metrics: Mapping[str, Any], macs: int) -> list[tuple[str, str, str]]:
    """What CMSIS-NN computes, where it does."""
    if "cmsis_nn_compute_nodes" not in metrics:
        return []
    nodes = f"{metrics['cmsis_nn_compute_nodes']:,} of {metrics['compute_nodes']:,}"
    shown = [("compute nodes on CMSIS-NN", nodes, "")]
    return [*shown, ("MACs on CMSIS-NN", percent(metrics["cmsis_nn_macs"] / macs), f"of {macs:,}")] if macs else shown


def _legend(plan: DelegationPlan, index_of: Mapping[str, int], number_of: Mapping[str, int]) -> list[dict[str, Any]]:
    """Portable kernels and every other place, with the nodes that run there."""
    by_place: dict[str | None, list[PlannedNode]] = {None: []}
    for node in plan.nodes:
        by_place.setdefault(None if node.is_portable else node.place, []).append(node)
    return [
        {
            "label": "CPU" if tag is None else f"{number_of[tag]}: {tag}",
            "hue": None if tag is None else hue(number_of[tag]),
            "indices": [index_of[node.name] for node in nodes],
            "num_computing": sum(node.compute for node in nodes),
        }
        for tag, nodes in sorted(by_place.items(), key=lambda item: number_of.get(item[0] or "", 0))
        if nodes
    ]


def _causes(graph: PlanGraph, tried: Sequence[Trial], index_of: Mapping[str, int]) -> list[dict[str, Any]]:
    """The changes that would free nodes."""
    gains = {trial.change: trial.gain for trial in tried}
    total_macs = sum(node.macs for node in graph.plan.nodes)
    undelegated = sum(node.compute and node.is_portable for node in graph.plan.nodes)
    return [
        {
            "change": cause.change.text,
            "concerns": f"{cause.num_compute:,} of {undelegated:,} compute nodes on the CPU",
            "macs": f"{cause.macs:,} MACs, {100 * share(cause.macs, total_macs):.1f} %" if cause.macs else "",
            "where": join_names(cause.modules),
            "trial": trial_text(cause, gains),
            "is_tried": cause.change in gains,
            "indices": [index_of[node.name] for node in cause.nodes],
        }
        for cause in causes(graph)
    ]


def _reasons(group: Group, index_of: Mapping[str, int], total_macs: int) -> dict[str, Any]:
    """The table of one reason code, with MACs if the group has any."""
    shown, converting = folded(group)
    header: tuple[str, ...] = ("", "operator", "nodes", "where", "why")
    if group.macs:
        header = (*header[:3], "MACs", "share", *header[3:])
    return {
        "title": f"{group.code.value}: {MEANINGS[group.code]}",
        "header": header,
        "rows": [_reason_row(row, index_of, total_macs if group.macs else 0) for row in shown],
        "converting": converting,
        "converting_indices": [index_of[node.name] for row in group.rows if row not in shown for node in row.nodes],
    }


def _reason_row(row: GroupRow, index_of: Mapping[str, int], total_macs: int) -> Sequence[Any]:
    macs = [row.macs, f"{100 * share(row.macs, total_macs):.1f} %"] if total_macs else []
    why = {"reason": format_reason(row.reason), "hint": row.hint}
    indices = [index_of[node.name] for node in row.nodes]
    return [indices, row.operator, len(row.nodes), *macs, join_names(row.modules), why]


def _node(graph: PlanGraph, node: PlannedNode, cost: str) -> dict[str, Any]:
    reason = node.reason
    fields = [
        ("operator", node.operator),
        ("runs in", "the CPU" if node.is_portable else node.place),
        ("reason", "" if reason is None else f"{reason.code.value}: {MEANINGS[reason.code]}"),
        ("backend message", "" if reason is None else reason.message),
        ("check", "" if reason is None else reason.check),
        ("values", "" if reason is None else ", ".join(f"{name}={value}" for name, value in reason.values.items())),
        ("decided by", "" if reason is None else reason.node),
        ("not on the NPU", "" if node.delegate_reason is None else str(node.delegate_reason)),
        ("excluded by", node.excluded_by or ""),
        ("module", node.module or "unknown"),
        ("source", node.source or "unknown"),
        ("MACs per inference", f"{node.macs:,}"),
        ("cost", cost),
        ("quantized", "yes" if node.is_quantized else "no"),
        ("computes", "yes" if node.compute else "no, it moves or converts numbers"),
    ]
    searched = (node.name, node.operator, node.module, node.place, str(reason or ""))
    return {
        "name": node.name,
        "text": " ".join(searched).lower(),
        "hint": hint(node, graph),
        "fields": [field for field in fields if field[1]],
        "inputs": [(format_tensor(tensor), tensor.source) for tensor in node.inputs],
        "outputs": [format_tensor(tensor, named=False) for tensor in node.outputs],
        "users": [user.name for user in graph.users(node)],
    }
