"""Divides a subgraph into units: the smallest parts that a backend can compile on their own.

A quantized operator is one with the dequantize nodes before and the quantize node after it, so a subgraph is cut only
where integers pass. Float operators are units each.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import networkx
import torch

from lowerdeck.graph.nodes import DEQUANTIZE, STATIC_QUANTIZE, operator_name

if TYPE_CHECKING:
    from torch.fx import Graph, Node

Unit = tuple[str, ...]
"""Names of nodes, in the graph's order."""


def units(graph: Graph, names: Collection[str] | None = None, constants: Collection[str] = ()) -> list[Unit]:
    """The units of a partition, so ordered that none depends on a later one.

    Args:
        graph: The partition's subgraph, or the edge program with it.
        names: The partition's nodes; None for all of `graph`.
        constants: Placeholders of constants. What is quantized of these alone, such as a transposed weight, belongs to
            its users: a backend expects a constant there.
    """
    nodes = [node for node in graph.nodes if node.op == "call_function" and (names is None or node.name in names)]
    is_quantized = any(operator_name(node).startswith(STATIC_QUANTIZE) for node in nodes)
    constant = {node for node in graph.nodes if node.op == "placeholder" and node.name in constants}
    for node in nodes:
        if node.all_input_nodes and constant.issuperset(node.all_input_nodes):
            constant.add(node)
    weights = {node for node in constant.intersection(nodes) if operator_name(node).startswith(STATIC_QUANTIZE)}
    joined = networkx.Graph()
    joined.add_nodes_from(nodes)
    for node in nodes:
        users = (user for user in node.users if user in joined)
        joined.add_edges_from(
            (node, user) for user in users if node in weights or _belong_together(node, user, is_quantized)
        )
    members = {node: index for index, unit in enumerate(networkx.connected_components(joined)) for node in unit}
    between = networkx.DiGraph()
    between.add_nodes_from(dict.fromkeys(members[node] for node in nodes))
    for node in nodes:
        between.add_edges_from((members[node], members[user]) for user in node.users if user in members)
    # Units that share a dequantize node may depend on each other: such a circle is one unit.
    circles = networkx.condensation(between)
    found = {
        circle: [node.name for node in nodes if members[node] in inside]
        for circle, inside in circles.nodes(data="members")
    }
    position = {node.name: index for index, node in enumerate(nodes)}
    order = networkx.lexicographical_topological_sort(circles, key=lambda circle: position[found[circle][0]])
    return [tuple(found[circle]) for circle in order]


def names_in(chosen: Sequence[Unit]) -> frozenset[str]:
    """All nodes of some units."""
    return frozenset(name for unit in chosen for name in unit)


def _belong_together(node: Node, user: Node, is_quantized: bool) -> bool:
    """Whether a backend needs both in one partition: no integers pass between them."""
    name, user_name, value = operator_name(node), operator_name(user), node.meta.get("val")
    if name.startswith(DEQUANTIZE) or user_name.startswith(STATIC_QUANTIZE) or user_name == "getitem":
        return True
    if name.startswith("quantized_decomposed.choose_qparams") or name == "getitem":
        return True
    is_float = isinstance(value, torch.Tensor) and value.is_floating_point()
    return is_float and is_quantized and not user_name.startswith("quantized_decomposed.choose_qparams")
