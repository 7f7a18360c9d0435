"""A softmax that a model computes of exponentials becomes the operator.

Masks have their numbers in front of this, and backends their tables; exponentials of what is masked have no steps left.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch

from lowerdeck.graph.masked_scores import packet_of
from lowerdeck.graph.retracing import arguments_of, called

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Node

_aten = torch.ops.aten
_SAME = (_aten.detach, _aten.detach_, _aten.alias, _aten.clone, _aten.contiguous)
_RESHAPING = (*_SAME, _aten.unsqueeze, _aten.squeeze, _aten.view, _aten.reshape)
"""Operators that leave the order of elements as it is."""
_MAXIMA = (_aten.amax.default, _aten.max.dim, _aten.max.default)
_SUMS = (_aten.sum.dim_IntList, _aten.sum.default)
_VANISHING = 2**-24
"""What is no more than this changes no float32 that is 1 or more, as a sum is of which one exponential is 1."""


def name_softmax(program: ExportedProgram) -> None:
    """Let `e = exp(z - max(z)); e / sum(e)` in an ATen program call softmax; `rename_outputs` comes next.

    The quotient is the same for whatever is subtracted of all of a row. It stays where something else reads the
    exponentials.
    """
    is_changed = False
    for node in list(program.graph.nodes):
        if (found := _scores_of(node)) is None:
            continue
        with program.graph.inserting_before(node):
            node.replace_all_uses_with(called(node, _aten.softmax.int, *found))
        is_changed = True
    if is_changed:
        program.graph.eliminate_dead_code()


def _scores_of(quotient: Node) -> tuple[Node, int] | None:
    """What `quotient` is the softmax of, and over which dimension; None if it is none."""
    if quotient.target is not _aten.div.Tensor or not all(isinstance(each, torch.fx.Node) for each in quotient.args):
        return None
    operands: Any = quotient.args
    exponentials, divisor = (_same(each, _SAME) for each in operands)
    if exponentials.target is not _aten.exp.default:
        return None
    total = _without_epsilon(divisor)
    dims = _reduced(total, _SUMS, exponentials)
    difference: Any = exponentials.args[0]
    if len(dims) != 1 or len(exponentials.users) != 2 or difference.target is not _aten.sub.Tensor:
        return None
    scores, largest = difference.args if not difference.kwargs else (None, None)
    if not isinstance(scores, torch.fx.Node) or not isinstance(largest, torch.fx.Node):
        return None
    rows = _reduced(largest, _MAXIMA, scores)
    is_least_one = rows == dims
    is_alike = all(
        (each.meta["val"].dtype, each.meta["val"].shape) == (scores.meta["val"].dtype, scores.meta["val"].shape)
        for each in (difference, quotient)
    )
    is_softmax = rows >= dims and (total is divisor or is_least_one) and is_alike
    return (scores, min(dims)) if is_softmax and scores.meta["val"].is_floating_point() else None


def _same(node: Node, packets: tuple[Any, ...]) -> Node:
    while packet_of(node) in packets and isinstance(node.args[0], torch.fx.Node):
        node = node.args[0]
    return node


def _without_epsilon(node: Node) -> Node:
    """What a number is added to that has no effect, as models do against a division by 0."""
    if node.target is not _aten.add.Tensor or node.kwargs or not isinstance(node.args[1], (int, float)):
        return node
    source: Any = node.args[0]
    return source if 0 <= node.args[1] <= _VANISHING else node


def _reduced(node: Node, reductions: tuple[Any, ...], source: Node) -> frozenset[int]:
    """The dimensions of `source` that `node` is a reduction over, with a size of 1 in their place; none if it is none.

    Args:
        node: A reduction, or a view of one; of the two results of max.dim, the first.
        reductions: Overloads of operators.
        source: What it has to be a reduction of.
    """
    found, shape = _same(node, _RESHAPING), source.meta["val"].shape
    if found.target is operator.getitem and found.args[1] == 0:
        found = found.args[0]  # type: ignore[assignment]
    if found.target not in reductions or _same(found.args[0], _SAME) is not _same(source, _SAME):  # type: ignore[arg-type]
        return frozenset()
    options = arguments_of(found)
    dim = options.get("dim")
    dims = frozenset(each % len(shape) for each in ([dim] if isinstance(dim, int) else dim or range(len(shape))))
    result = node.meta["val"].shape
    kept = [1 if each in dims else size for each, size in enumerate(shape)]
    is_kept = [1] * (len(shape) - len(result)) + list(result) == kept
    return dims if is_kept and options.get("dtype") is None else frozenset()
