"""What it would take to leave nothing to portable kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lowerdeck.contracts.plan import PlannedNode
from lowerdeck.explain.graph import PlanGraph
from lowerdeck.explain.hints import hint

_VIEW = "aten.view_copy.default"
"""An operator for which no kernel runs outside of delegates: its result shares its operand's memory."""


@dataclass(frozen=True, kw_only=True)
class Remainder:
    """Nodes of one operator that portable kernels compute, and what would move them to another processor."""

    operator: str
    nodes: Sequence[PlannedNode]
    ways: Sequence[str]
    """Alternatives, the processor before portable kernels first; empty where none is known."""

    @property
    def macs(self) -> int:
        """MACs of all nodes, per inference."""
        return sum(node.macs for node in self.nodes)


def remainders(graph: PlanGraph) -> list[Remainder]:
    """All that would have to change so that no portable kernel computes anything, most MACs first.

    Quantize, dequantize and getitem nodes follow what they belong to.
    """
    rows: dict[tuple[str, ...], list[PlannedNode]] = {}
    for node in graph.plan.nodes:
        if node.is_portable and node.compute and node.operator != _VIEW:
            key = (node.operator, *_ways(node, graph))
            rows.setdefault(key, []).append(node)
    found = [Remainder(operator=key[0], nodes=nodes, ways=key[1:]) for key, nodes in rows.items()]
    return sorted(found, key=lambda each: (-each.macs, -len(each.nodes), each.operator))


def as_json(found: Sequence[Remainder]) -> list[dict[str, Any]]:
    """They as plain containers; docs/plan.md describes them."""
    return [
        {
            "operator": each.operator,
            "nodes": [node.name for node in each.nodes],
            "macs": each.macs,
            "ways": list(each.ways),
        }
        for each in found
    ]


def _ways(node: PlannedNode, graph: PlanGraph) -> tuple[str, ...]:
    if graph.plan.fallback is None:
        return tuple(filter(None, [hint(node, graph)]))
    on_library = hint(node, graph)
    on_delegate = hint(node, graph, node.delegate_reason)
    ways = {"on CMSIS-NN": on_library, "on the NPU": on_delegate}
    return tuple(f"{where}: {text}" for where, text in ways.items() if text)
