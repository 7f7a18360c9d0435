"""The graph of a plan at several grains: put together by modules, operator by operator, or with every node."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lowerdeck.contracts.plan import PlannedNode
from lowerdeck.explain.graph import PlanGraph
from lowerdeck.explain.layout import Edge

_MAX_GROUPS = 80
"""Boxes that a picture of the whole may have before modules are put together further."""


@dataclass(frozen=True, kw_only=True)
class Box:
    """Nodes that are drawn as one."""

    key: str
    title: str
    subtitle: str
    nodes: tuple[PlannedNode, ...]
    """All in one partition, or all on the CPU."""

    @property
    def partition(self) -> str | None:
        """Where they run; None for the CPU."""
        return self.nodes[0].partition


@dataclass(frozen=True, kw_only=True)
class View:
    """Boxes and edges between them, every box after those that it takes from."""

    name: str
    title: str
    boxes: Sequence[Box]
    edges: Sequence[Edge]


def views(graph: PlanGraph) -> list[View]:
    """What can be looked at, coarse to fine; a grain that shows the same as the one before it is left out."""
    computing = [node for node in graph.plan.nodes if node.compute]
    edges = _edges_between(graph, {node.name for node in computing})
    every = View(
        name="all",
        title="all nodes",
        boxes=[_single(node) for node in graph.plan.nodes],
        edges=graph.edges,
    )
    operators = View(name="operators", title="operators", boxes=[_single(node) for node in computing], edges=edges)
    found = [_by_module(computing, edges), operators, every]
    return [view for view, finer in zip(found, [*found[1:], None], strict=True) if _shows_more(view, finer)]


def _shows_more(view: View, finer: View | None) -> bool:
    return finer is None or 0 < len(view.boxes) < len(finer.boxes)


def short(operator: str) -> str:
    """E.g. `convolution` of `aten.convolution.default`."""
    parts = operator.split(".")
    return parts[1] if len(parts) > 1 else operator


def _single(node: PlannedNode) -> Box:
    return Box(key=node.name, title=short(node.operator), subtitle=node.module or node.name, nodes=(node,))


def _edges_between(graph: PlanGraph, kept: set[str]) -> list[Edge]:
    """Edges between `kept` nodes, those through others among them."""
    reached: dict[str, dict[str, None]] = {}  # of a node left out, the kept nodes that it takes from
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
    """Modules as boxes, at the finest grain that has few enough of them."""
    deepest = max((node.module.count(".") + 1 for node in nodes), default=1)
    for depth in range(deepest, 0, -1):
        boxes, between = _grouped(nodes, edges, depth)
        if len(boxes) <= _MAX_GROUPS:
            break
    return View(name="modules", title="modules", boxes=boxes, edges=between)


def _grouped(nodes: Sequence[PlannedNode], edges: Sequence[Edge], depth: int) -> tuple[list[Box], list[Edge]]:
    """Nodes of one module, as far as `depth` names say, that run in one place and hang together.

    Put together so that no circle arises: a node joins the group of a node that it takes from only where all others
    that it takes from belong to groups of lower level, and edges between groups always lead to a higher level.
    """
    producers: dict[str, list[str]] = {}
    for producer, consumer in edges:
        producers.setdefault(consumer, []).append(producer)
    group_of: dict[str, int] = {}
    members: list[list[PlannedNode]] = []
    levels: list[int] = []
    for node in nodes:
        before = sorted(
            {group_of[producer] for producer in producers.get(node.name, ())}, key=lambda group: -levels[group]
        )
        highest = before[0] if before else None
        alone = highest is not None and all(levels[group] < levels[highest] for group in before[1:])
        if highest is not None and alone and _belongs(node, members[highest][0], depth):
            group_of[node.name] = highest
            members[highest].append(node)
            continue
        group_of[node.name] = len(members)
        members.append([node])
        levels.append(1 + max((levels[group] for group in before), default=-1))
    order = sorted(range(len(members)), key=lambda group: (levels[group], group))
    boxes = [_group_box(group, members[group], depth) for group in order]
    between = {(f"g{group_of[producer]}", f"g{group_of[consumer]}"): None for producer, consumer in edges}
    return boxes, [edge for edge in between if edge[0] != edge[1]]


def _belongs(node: PlannedNode, other: PlannedNode, depth: int) -> bool:
    return _prefix(node, depth) == _prefix(other, depth) and node.partition == other.partition


def _prefix(node: PlannedNode, depth: int) -> str:
    return ".".join(node.module.split(".")[:depth])


def _group_box(group: int, nodes: Sequence[PlannedNode], depth: int) -> Box:
    title = _prefix(nodes[0], depth) or short(nodes[0].operator)
    return Box(
        key=f"g{group}", title=title, subtitle=_counted(short(node.operator) for node in nodes), nodes=tuple(nodes)
    )


def _counted(names: Iterable[str]) -> str:
    """E.g. `2 convolution, add`."""
    counts: dict[str, int] = {}
    for name in names:
        counts[name] = counts.get(name, 0) + 1
    return ", ".join(name if count == 1 else f"{count} {name}" for name, count in counts.items())
