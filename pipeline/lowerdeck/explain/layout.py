"""The layout of a graph: layers from top to bottom with few crossings, and long edges around the boxes.

The layered drawing of Sugiyama, Tagawa and Toda (1981): layers by the longest path, boxes in a layer ordered by the
mean place of their neighbours, and places by least squares. The same graph always has the same layout.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

_SWEEPS = 6
"""Passes down and up that improve the order and the places."""
_PASSING_WIDTH = 0.35
"""Width of an edge that passes a layer, in boxes."""
MAX_PASSED = 50
"""Most layers that an edge passes around their boxes. Longer ones have no places in between: an unrolled loop has one
for every step, and its page would grow with the square of the steps."""

Edge = tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Places in units of boxes; the leftmost is 0."""

    places: Mapping[str, tuple[float, int]]
    """Box -> (place within its layer, layer)."""
    routes: Mapping[Edge, tuple[tuple[float, int], ...]]
    """Edge -> places along it, from start to end: in every layer, or in none in between where these are too many."""

    @property
    def width(self) -> float:
        """Width of the drawing, in boxes."""
        passed = [x for route in self.routes.values() for x, _ in route]
        return 1 + max([*passed, *(x for x, _ in self.places.values())], default=0.0)

    @property
    def num_layers(self) -> int:
        """Number of layers."""
        return 1 + max((layer for _, layer in self.places.values()), default=-1)


def layered(nodes: Sequence[str], edges: Sequence[Edge]) -> Layout:
    """The layout of a graph.

    Args:
        nodes: Boxes in topological order.
        edges: Pairs of boxes, (producer, consumer).
    """
    layers = _layers(nodes, edges)
    chains = {edge: _chain(edge, layers) for edge in edges}
    ranks: list[list[str]] = [[] for _ in range(1 + max(layers.values(), default=-1))]
    for node in nodes:
        ranks[layers[node]].append(node)
    links: list[Edge] = []
    for chain in chains.values():
        for offset, passing in enumerate(chain[1:-1], start=1):
            ranks[layers[chain[0]] + offset].append(passing)
        links += pairwise(chain)
    producers, consumers = _neighbours(links, 1), _neighbours(links, 0)
    _order(ranks, producers, consumers)
    places = _places(ranks, producers, consumers, set(nodes))
    left = min(places.values(), default=0.0)
    shifted = {name: round(x - left, 3) for name, x in places.items()}
    level = {name: rank for rank, names in enumerate(ranks) for name in names}
    return Layout(
        places={node: (shifted[node], layers[node]) for node in nodes},
        routes={edge: tuple((shifted[name], level[name]) for name in chain) for edge, chain in chains.items()},
    )


def _layers(nodes: Sequence[str], edges: Sequence[Edge]) -> dict[str, int]:
    """Box -> layer: below all of its producers; a box without producers is right above its first consumer."""
    producers, consumers = _neighbours(edges, 1), _neighbours(edges, 0)
    layers: dict[str, int] = {}
    for node in nodes:
        layers[node] = 1 + max((layers[producer] for producer in producers.get(node, ())), default=-1)
    for node in reversed(nodes):
        if node not in producers and node in consumers:
            layers[node] = min(layers[consumer] for consumer in consumers[node]) - 1
    return layers


def _chain(edge: Edge, layers: Mapping[str, int]) -> list[str]:
    """The ends of an edge, and between them a name for every layer that it passes, unless these are too many."""
    start, end = edge
    if layers[end] - layers[start] - 1 > MAX_PASSED:
        return [start, end]
    passing = [f"{start}\0{end}\0{layer}" for layer in range(layers[start] + 1, layers[end])]
    return [start, *passing, end]


def _neighbours(edges: Sequence[Edge], end: int) -> dict[str, list[str]]:
    """Box -> the boxes at the other end of those edges that have it at `end`, 0 or 1."""
    found: dict[str, list[str]] = {}
    for edge in edges:
        found.setdefault(edge[end], []).append(edge[1 - end])
    return found


def _order(ranks: list[list[str]], producers: Mapping[str, list[str]], consumers: Mapping[str, list[str]]) -> None:
    """Sort every layer by the mean place of its boxes' neighbours, alternately in the layer before and after it."""
    place = {name: float(index) for names in ranks for index, name in enumerate(names)}
    for _ in range(_SWEEPS):
        for ordered, linked in ((ranks[1:], producers), (ranks[-2::-1], consumers)):
            for rank in ordered:
                wanted = {name: _mean([place[other] for other in linked.get(name, ())], place[name]) for name in rank}
                rank.sort(key=wanted.__getitem__)
                place.update((name, float(index)) for index, name in enumerate(rank))


def _places(
    ranks: list[list[str]], producers: Mapping[str, list[str]], consumers: Mapping[str, list[str]], boxes: set[str]
) -> dict[str, float]:
    """Name -> place, as near to its neighbours as the other boxes of its layer allow."""
    places = {name: float(index) for names in ranks for index, name in enumerate(names)}
    for _ in range(_SWEEPS):
        for ordered, linked in ((ranks, producers), (ranks[::-1], consumers)):
            for rank in ordered:
                wanted = [_mean([places[other] for other in linked.get(name, ())], places[name]) for name in rank]
                widths = [1.0 if name in boxes else _PASSING_WIDTH for name in rank]
                places.update(zip(rank, _separate(wanted, widths), strict=True))
    return places


def _separate(wanted: Sequence[float], widths: Sequence[float]) -> list[float]:
    """The places nearest to `wanted`, by least squares, at which boxes of these widths do not overlap.

    Minus the widths before it, no place may be below the previous one: an isotonic regression, solved by pooling
    adjacent violators.
    """
    offsets, reached = [], 0.0
    for index, width in enumerate(widths):
        reached += (widths[index - 1] + width) / 2 if index else 0.0
        offsets.append(reached)
    pools: list[tuple[float, int]] = []  # mean, number of places
    for want, offset in zip(wanted, offsets, strict=True):
        pools.append((want - offset, 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (first, count), (second, more) = pools[-2:]
            pools[-2:] = [((first * count + second * more) / (count + more), count + more)]
    means = [mean for mean, count in pools for _ in range(count)]
    return [mean + offset for mean, offset in zip(means, offsets, strict=True)]


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise
