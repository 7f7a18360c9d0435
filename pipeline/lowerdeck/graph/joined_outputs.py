"""Outputs with several quantities, such as boxes in pixels and probabilities, that no layer reads as one tensor.

One scale for both has no steps for the smaller one: of probabilities beside boxes up to 640, 8 bits keep nothing.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import torch

from lowerdeck.graph.masked_scores import packet_of
from lowerdeck.graph.quantities import (
    CONCATENATING,
    JOINING,
    MOVING,
    READING_SHAPES,
    SEPARATING,
    WHOLE,
    Units,
    is_beside_far_constant,
    is_elementwise,
    is_sum_of_padded,
    is_weightless,
    known_values,
    operator_of,
    quantities,
    step_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch.export import ExportedProgram
    from torch.fx import Graph, GraphModule, Node

    from lowerdeck.graph.quantities import Quantity, Values

_aten = torch.ops.aten
_CONVOLUTIONS = (_aten.conv1d, _aten.conv2d, _aten.conv3d)
_MOST_PARTS = 8
"""More tensors are steps of a sequence."""
MARK = "is_of_unlike_quantities"
"""Of nodes that are, or hand on, a tensor of unlike quantities."""


def mark_unlike_joins(model: GraphModule) -> list[Node]:
    """Mark where a program puts unlike quantities into one tensor, and what hands this on, and return these nodes.

    Unlike are numbers up to 1 by how they are computed (a sigmoid, a softmax, booleans), integers, and others; and
    results of layers that constants scale or shift so differently that one scale is too coarse for the least, as where
    an output is multiplied by the standard deviation of each quantity. Such a tensor counts only if what computes with
    it reads parts of it, or has no weights: a layer gives one scale to all that it reads.
    """
    graph, values = model.graph, known_values(model)
    known = quantities(graph, values)
    apart, in_parts = (_apart(graph, known, values, counts_parts=each) for each in (False, True))
    for node in graph.nodes:
        reads_marked = any(each.meta.get(MARK) for each in node.all_input_nodes)
        is_on_the_way = operator_of(node) in MOVING or (node in in_parts and _is_handing_on(node, known, values))
        counts = node in apart or (node in in_parts and _is_far_apart(node, known, values))
        if (counts and _makes_unlike(node, known, values)) or (reads_marked and is_on_the_way):
            node.meta[MARK] = True
    return marked_unlike(graph)


def marked_unlike(graph: Graph) -> list[Node]:
    """What was marked, or was made of it since."""
    return [node for node in graph.nodes if node.meta.get(MARK)]


def mark_replacements(graph: Graph, names: set[str], readers: Mapping[str, set[str]]) -> None:
    """Mark what a transformation put in the place of marked nodes, as NXP's quantizer multiplies in place of dividing.

    Args:
        graph: The transformed graph.
        names: Of all nodes before.
        readers: The names of the users of each marked node, by its name.
    """
    left = {node.name for node in graph.nodes}
    lost = [users for name, users in readers.items() if name not in left]
    for node in graph.nodes:
        users = {user.name for user in node.users}
        if node.name not in names and node.op == "call_function" and users and any(users <= each for each in lost):
            node.meta[MARK] = True


def _makes_unlike(node: Node, known: Mapping[Node, Quantity], values: Values) -> bool:
    """Whether a node joins unlike quantities, or makes them unlike."""
    if is_beside_far_constant(node, known, values):
        return True
    step, quantity = step_of(node, values), known[node]
    if packet_of(node) is _aten.batch_norm and step and packet_of(step.source) in _CONVOLUTIONS:
        return False  # quantizers fold it
    is_join = operator_of(node) in JOINING or is_sum_of_padded(node)
    if not is_join and not (step and step.units.are_spread):
        return False
    return (is_join and len(quantity.kinds) > 1) or (quantity.units is not None and quantity.units.are_unlike)


def joined_parts(program: ExportedProgram) -> dict[Node, list[tuple[int, slice]]]:
    """Joins of a few tensors that no layer reads as one, with the dimension and the indices of each tensor in them."""
    graph, found = program.graph, dict[torch.fx.Node, list[tuple[int, slice]]]()
    values = known_values(program)
    apart = _apart(graph, quantities(graph, values), values, counts_parts=True)
    for node in graph.nodes:
        tensors = node.args[0] if operator_of(node) in (*CONCATENATING, _aten.stack) else ()
        if node not in apart or not 1 < len(tensors) <= _MOST_PARTS:
            continue
        value = node.meta["val"]
        dim = (node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)) % value.dim()
        is_stack = operator_of(node) not in CONCATENATING
        sizes = [1 if is_stack else _size(each.meta["val"], value.dim(), dim) for each in tensors]
        if all(isinstance(size, int) for size in sizes):
            ends = list(itertools.accumulate(sizes, initial=0))
            found[node] = [(dim, slice(*each)) for each in itertools.pairwise(ends)]
    return found


def _size(tensor: torch.Tensor, dims: int, dim: int) -> int:
    """Of a tensor in a concatenation, which may be of shape [0] beside others of any."""
    return tensor.shape[dim] if tensor.dim() == dims else 0


def _is_far_apart(node: Node, known: Mapping[Node, Quantity], values: Values) -> bool:
    """Whether what a node joins may differ so much that layers, too, which read parts of it, read next to nothing.

    A tanh beside results of layers does not, as in a cell of an LSTM.
    """
    quantity = known[node]
    if operator_of(node) not in JOINING and not is_sum_of_padded(node):
        return is_beside_far_constant(node, known, values)
    if quantity.units is None or WHOLE in quantity.kinds or is_beside_far_constant(node, known, values):
        return True
    least, largest, lowest, highest = quantity.units
    return Units(min(least, 1.0), max(largest, 1.0), min(lowest, 0.0), max(highest, 0.0)).are_unlike


def _apart(graph: Graph, known: Mapping[Node, Quantity], values: Values, *, counts_parts: bool) -> set[Node]:
    """Nodes that no layer reads, or, with `counts_parts`, of which layers read no more than parts."""
    apart = set[torch.fx.Node]()
    for node in reversed(graph.nodes):
        if all(_reads_apart(user, apart, known, values, counts_parts=counts_parts) for user in node.users):
            apart.add(node)
    return apart


def _reads_apart(
    user: Node, apart: set[Node], known: Mapping[Node, Quantity], values: Values, *, counts_parts: bool
) -> bool:
    if user.op == "output" or operator_of(user) in READING_SHAPES:
        return True
    if operator_of(user) in SEPARATING and (counts_parts or all(is_elementwise(each, known) for each in user.users)):
        return True
    return user in apart and _is_handing_on(user, known, values)


def _is_handing_on(node: Node, known: Mapping[Node, Quantity], values: Values) -> bool:
    is_moving = operator_of(node) in (*MOVING, *JOINING)
    return is_moving or is_elementwise(node, known) or is_weightless(node, values)
