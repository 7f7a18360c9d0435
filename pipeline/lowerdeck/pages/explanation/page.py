"""A delegation plan as one HTML file: its graph, every node with all that is known of it, and why some stay on the CPU.

Nothing is loaded from anywhere, the one script is named by its digest, and no text of a model becomes markup.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from typing import Any

from lowerdeck.contracts.plan import DelegationPlan, PlannedNode
from lowerdeck.delegation.coverage import coverage
from lowerdeck.explain.graph import PlanGraph
from lowerdeck.explain.groups import MEANINGS, Group, Row, groups, share
from lowerdeck.explain.hints import hint
from lowerdeck.explain.terminal import format_reason, format_tensor, join_names
from lowerdeck.explain.views import View, views
from lowerdeck.pages.explanation.browser import SCRIPT, STYLE
from lowerdeck.pages.explanation.drawing import HUES, svg
from lowerdeck.pages.parts import Markup, page_head, script_element, section, table


def render(plan: DelegationPlan, title: str) -> str:
    """The page for `plan`; the same plan and title give the same bytes.

    Args:
        plan: To show.
        title: E.g. model and target.
    """
    graph, index_of = PlanGraph(plan), {node.name: index for index, node in enumerate(plan.nodes)}
    found = groups(graph)
    parts = [
        page_head(f"{title}: delegation plan", STYLE, SCRIPT),
        f'<main><header><p class="kind">Lowerdeck delegation plan</p><h1>{escape(title)}</h1></header>',
        section("Coverage", _tiles(plan)),
        section("Graph", _work(graph, index_of)),
        section("What stays on the CPU, and why", _reasons(found, index_of, plan)),
        f"</main>{_data(graph)}{script_element(SCRIPT)}</body></html>",
    ]
    return "\n".join(parts) + "\n"


def _tiles(plan: DelegationPlan) -> str:
    metrics = coverage(plan)
    macs, parameters = int(metrics["total_macs"]), int(metrics["total_parameters"])
    tiles = [
        (
            "delegated compute nodes",
            f"{metrics['delegated_compute_nodes']:,} of {metrics['compute_nodes']:,}",
            f"{100 * metrics['delegated_share']:.1f} %",
        ),
        ("delegated MACs", f"{100 * metrics['delegated_macs_share']:.1f} %", f"of {macs:,}"),
        ("delegated parameters", f"{100 * metrics['delegated_parameter_share']:.1f} %", f"of {parameters:,}"),
        ("partitions", f"{metrics['partitions']:,}", plan.backend),
        (
            "boundary crossings",
            f"{metrics['crossings']:,}",
            f"{metrics['crossing_bytes']:,} bytes per inference, {metrics['transposes_at_boundary']} transposes",
        ),
    ]
    drawn = "".join(
        f'<div class="tile"><h3>{escape(name)}</h3><b>{escape(large)}</b><span>{escape(small)}</span></div>'
        for name, large, small in tiles
    )
    return f'<div class="tiles">{drawn}</div>'


def _work(graph: PlanGraph, index_of: dict[str, int]) -> str:
    """Tools, legend, drawings and the details of one node."""
    number_of = {tag: number for number, tag in enumerate(graph.plan.partitions, start=1)}
    seen = views(graph)
    drawings = "".join(svg(view, index_of, number_of, hidden=bool(place)) for place, view in enumerate(seen))
    return (
        f"{_tools(seen)}{_legend(graph.plan, index_of, number_of)}"
        f'<div class="work"><div class="canvas" tabindex="-1">{drawings}</div>'
        '<aside class="details" aria-live="polite"><p class="hint">Choose a box for all that is known of it. Drag to '
        "move, Ctrl and wheel to zoom. Red edges carry tensors across the boundary of a partition.</p></aside></div>"
    )


def _tools(seen: Sequence[View]) -> str:
    buttons = "".join(
        f'<button type="button" data-to="{view.name}" aria-pressed="{"false" if place else "true"}">'
        f"{escape(view.title)} ({len(view.boxes):,})</button>"
        for place, view in enumerate(seen)
    )
    return (
        f'<div class="bar-of-tools">{buttons}'
        '<input id="search" type="search" aria-label="Search nodes" '
        'placeholder="Search name, operator, module or reason; Enter goes on"><span id="found" class="kind"></span>'
        '<button type="button" id="out" aria-label="Smaller">−</button><span id="scale" class="kind">100 %</span>'
        '<button type="button" id="in" aria-label="Larger">+</button><button type="button" id="fit">fit</button></div>'
    )


def _legend(plan: DelegationPlan, index_of: dict[str, int], number_of: dict[str, int]) -> str:
    """A button for the CPU and one for each partition, which show what runs there."""
    by_place: dict[str | None, list[PlannedNode]] = {None: []}
    for node in plan.nodes:
        by_place.setdefault(node.partition, []).append(node)
    chips = ""
    for tag, nodes in sorted(by_place.items(), key=lambda item: number_of.get(item[0] or "", 0)):
        if not nodes:
            continue
        computing = sum(node.compute for node in nodes)
        label = "CPU" if tag is None else f"{number_of[tag]}: {tag}"
        style = "" if tag is None else f' style="--hue:{HUES[number_of[tag] % len(HUES)]}"'
        chips += (
            f'<button type="button" class="chip{" cpu" if tag is None else ""}"{style} aria-pressed="false" '
            f'data-show="{_indices(nodes, index_of)}">{escape(label)} ({computing} compute)</button>'
        )
    return f'<div class="chips">{chips}</div>'


def _reasons(found: Sequence[Group], index_of: dict[str, int], plan: DelegationPlan) -> str:
    if not found:
        return "<p>Nothing: every node is delegated.</p>"
    total_macs, content = sum(node.macs for node in plan.nodes), ""
    for group in found:
        title = f"{group.code.value}: {MEANINGS[group.code]}"
        header: tuple[str, ...] = ("", "operator", "nodes", "where", "why")
        if group.macs:
            header = (*header[:3], "MACs", "share", *header[3:])
        rows = [_reason_row(row, index_of, total_macs if group.macs else 0) for row in group.rows]
        content += f"<h3>{escape(title)}</h3>{table(header, rows, 'reasons')}"
    return content


def _reason_row(row: Row, index_of: dict[str, int], total_macs: int) -> list[Any]:
    """Cells of the table of reasons; without MACs where `total_macs` is 0."""
    shows = f'<button type="button" data-show="{_indices(row.nodes, index_of)}" aria-pressed="false">show</button>'
    hinted = f"<br><b>Hint:</b> {escape(row.hint)}" if row.hint else ""
    macs = [row.macs, f"{100 * share(row.macs, total_macs):.1f} %"] if total_macs else []
    why = Markup(f"{escape(format_reason(row.reason))}{hinted}")
    return [Markup(shows), row.operator, len(row.nodes), *macs, join_names(row.modules), why]


def _indices(nodes: Sequence[PlannedNode], index_of: dict[str, int]) -> str:
    return " ".join(str(index_of[node.name]) for node in nodes)


def _data(graph: PlanGraph) -> str:
    """What the script shows of nodes, as JSON that no text in it can end."""
    text = json.dumps({"nodes": [_node(graph, node) for node in graph.plan.nodes]}, separators=(",", ":"))
    return f'<script type="application/json" id="plan">{text.replace("<", chr(92) + "u003c")}</script>'


def _node(graph: PlanGraph, node: PlannedNode) -> dict[str, Any]:
    reason = node.reason
    fields = [
        ("operator", node.operator),
        ("runs in", node.partition or "the CPU"),
        ("reason", "" if reason is None else f"{reason.code.value}: {MEANINGS[reason.code]}"),
        ("in the backend's words", "" if reason is None else reason.message),
        ("said by", "" if reason is None else reason.check),
        ("values", "" if reason is None else ", ".join(f"{name}={value}" for name, value in reason.values.items())),
        ("decided by", "" if reason is None else reason.node),
        ("excluded by", node.excluded_by or ""),
        ("module", node.module or "unknown"),
        ("source", node.source or "unknown"),
        ("MACs per inference", f"{node.macs:,}"),
        ("quantized", "yes" if node.is_quantized else "no"),
        ("computes", "yes" if node.compute else "no, it moves or converts numbers"),
    ]
    searched = (node.name, node.operator, node.module, node.partition or "cpu", str(reason or ""))
    return {
        "name": node.name,
        "text": " ".join(searched).lower(),
        "hint": hint(node, graph),
        "fields": [field for field in fields if field[1]],
        "takes": [(format_tensor(tensor), tensor.source) for tensor in node.inputs],
        "gives": [format_tensor(tensor, named=False) for tensor in node.outputs],
        "users": [user.name for user in graph.users(node)],
    }
