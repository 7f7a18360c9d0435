"""The graph of a plan at several levels of detail: by modules, by operators, or with every node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from lowerdeck.contracts.plan import PlannedNode
from lowerdeck.explain.graph import PlanGraph
from lowerdeck.explain.layout import Edge

_MAX_GROUPS = 80
"""Most boxes of the view by modules; with more, outer modules are the boxes."""


@dataclass(frozen=True, kw_only=True)
class Box:
    """Nodes drawn as one box."""

    key: str
    title: str
    subtitle: str
    nodes: tuple[PlannedNode, ...]
    """All in one partition, all on one kernel library, or all on portable kernels."""

    @property
    def place(self) -> str:
        """See PlannedNode.place."""
        return self.nodes[0].place


@dataclass(frozen=True, kw_only=True)
class View:
    """Boxes in topological order, and edges between them."""

    name: str
    title: str
    boxes: Sequence[Box]
    edges: Sequence[Edge]


def views(graph: PlanGraph) -> list[View]:
    """The views of a plan, coarse to fine, without those that have as many boxes as the next finer one."""
    computing = [node for node in graph.plan.nodes if node.compute]
    edges = _edges_between(graph, {node.name for node in computing})
    every = View(name="all", title="all nodes", boxes=[_single(node) for node in graph.plan.nodes], edges=graph.edges)
    operators = View(name="operators", title="operators", boxes=[_single(node) for node in computing], edges=edges)
    found = [_by_module(computing, edges), operators, every]
    return [view for view, finer in pairwise(found) if 0 < len(view.boxes) < len(finer.boxes)] + [every]


def short(operator: str) -> str:
    """E.g. `convolution` of `aten.convolution.default`."""
    parts = operator.split(".")
    return parts[1] if len(parts) > 1 else operator


def _single(node: PlannedNode) -> Box:
    return Box(key=node.name, title=short(node.operator), subtitle=node.module or node.name, nodes=(node,))


def _edges_between(graph: PlanGraph, kept: set[str]) -> list[Edge]:
    """Edges between `kept` nodes, direct or through other nodes."""
    reached: dict[str, dict[str, None]] = {}  # node left out -> kept nodes that produce its inputs
    edges: dict[Edge, None] = {}
    for node in graph.plan.nodes:
        producers: dict[str, None] = {}
        for source in graph.sources(node):
            producers |= {source.name: None} if source.name in kept else reached.get(source.name, {})
        if node.name in kept:
            edges |= {(producer, node.name): None for producer in producers}
        else:
            reached[node.name] = producers
    return list(edges)


def _by_module(nodes: Sequence[PlannedNode], edges: Sequence[Edge]) -> View:
    """Modules as boxes, at the finest level of at most `_MAX_GROUPS` boxes."""
    deepest = max((node.module.count(".") + 1 for node in nodes), default=1)
    for depth in range(deepest, 0, -1):
        boxes, between = _grouped(nodes, edges, depth)
        if len(boxes) <= _MAX_GROUPS:
            break
    return View(name="modules", title="modules", boxes=boxes, edges=between)


def _grouped(nodes: Sequence[PlannedNode], edges: Sequence[Edge], depth: int) -> tuple[list[Box], list[Edge]]:
    """Group connected nodes that run in one place and whose module paths agree in the first `depth` names.

    No cycle can arise: a node joins the group of one of its producers only if all other producers are in groups of a
    lower level, and edges between groups always lead to a higher level.
    """
    producers: dict[str, list[str]] = {}
    for producer, consumer in edges:
        producers.setdefault(consumer, []).append(producer)
    group_of: dict[str, int] = {}
    members: list[list[PlannedNode]] = []
    levels: list[int] = []
    for node in nodes:
        before = {group_of[producer] for producer in producers.get(node.name, ())}
        highest = [group for group in before if levels[group] == max(levels[other] for other in before)]
        if len(highest) == 1:
            first = members[highest[0]][0]
            if _prefix(node, depth) == _prefix(first, depth) and node.place == first.place:
                group_of[node.name] = highest[0]
                members[highest[0]].append(node)
                continue
        group_of[node.name] = len(members)
        members.append([node])
        levels.append(1 + max((levels[group] for group in before), default=-1))
    order = sorted(range(len(members)), key=lambda group: (levels[group], group))
    boxes = [_group_box(group, members[group], depth) for group in order]
    between = {(f"g{group_of[producer]}", f"g{group_of[consumer]}"): None for producer, consumer in edges}
    return boxes, [edge for edge in between if edge[0] != edge[1]]


def _prefix(node: PlannedNode, depth: int) -> str:
    return ".".join(node.module.split(".")[:depth])


def _group_box(group: int, nodes: Sequence[PlannedNode], depth: int) -> Box:
    title = _prefix(nodes[0], depth) or short(nodes[0].operator)
    counts = Counter(short(node.operator) for node in nodes)
    subtitle = ", ".join(name if count == 1 else f"{count} {name}" for name, count in counts.items())
    return Box(key=f"g{group}", title=title, subtitle=subtitle, nodes=tuple(nodes))
