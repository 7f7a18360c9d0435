"""A softmax that a model computes of exponentials becomes the operator.

Masks have their numbers in front of this, and backends their tables; exponentials of what is masked have no steps left.
"""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from lowerdeck.graph.masked_scores import HANDING_ON, MASKED, OPERANDS, packet_of
from lowerdeck.graph.masks import constants
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
_PRODUCTS = (_aten.matmul, _aten.bmm)
_NUMBER: dict[Any, int] = {_aten.masked_fill.Scalar: 2, _aten.where.ScalarOther: 2, _aten.where.ScalarSelf: 1}
"""Where operators that mask have their number."""
_VANISHING = 2**-24
"""What is no more than this changes no float32 that is 1 or more, as a sum is of which one exponential is 1."""


class _Weights(NamedTuple):
    """Softmax of `scores` over `dims`, of the exponentials `of`; as the argument of `product` at `position`, if any."""

    of: Node
    scores: Node
    dims: frozenset[int]
    product: Node | None
    position: int


def name_softmax(program: ExportedProgram) -> None:
    """Let `e = exp(z - max(z)); e / sum(e)` in an ATen program call softmax; `rename_outputs` comes next.

    The quotient is the same for whatever is subtracted of all of a row, and for nothing; what is divided may be a
    product of the exponentials. It stays where something else reads these, and over several dimensions without a mask:
    the weights of a whole image are less than the steps of 1/256 that softmax has on Cortex-M and Neutron.
    """
    is_changed = False
    for node in list(program.graph.nodes):
        found = next(filter(None, (_weights(node, *each) for each in _quotients(node))), None)
        if found is None or (len(found.dims) > 1 and not _is_masked(program, found.scores)):
            continue
        if found.scores is found.of.args[0]:
            _leave_out_by_infinity(found.scores)
        with program.graph.inserting_before(node):
            made = _softmax(node, found.scores, sorted(found.dims))
            if found.product is not None:
                operands = list(found.product.args)
                operands[found.position] = made
                made = called(node, found.product.target, *operands)
            node.replace_all_uses_with(made)
        is_changed = True
    if is_changed:
        program.graph.eliminate_dead_code()


def _is_masked(program: ExportedProgram, scores: Node) -> bool:
    """Whether a number that leaves out is filled into `scores`, or added to them."""
    values, waiting, seen = constants(program), [scores], set[torch.fx.Node]()
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        numbers = [each for each in node.args if isinstance(each, (int, float))]
        if any(number <= MASKED for number in numbers) or (node in values and bool((values[node]() <= MASKED).any())):
            return True
        if packet_of(node) in (*OPERANDS, *HANDING_ON, _aten.div):
            waiting += node.all_input_nodes
    return False


def _quotients(node: Node) -> list[tuple[Node, Node]]:
    """What `node` divides, and what by; it may multiply by a reciprocal."""
    operands: Any = node.args
    if node.target not in (_aten.div.Tensor, _aten.mul.Tensor) or not all(
        isinstance(each, torch.fx.Node) for each in operands
    ):
        return []
    if node.target is _aten.div.Tensor:
        return [operands]
    inverted = [(one, _inverted(other)) for one, other in (operands, operands[::-1])]
    return [(one, divisor) for one, divisor in inverted if divisor is not None]


def _inverted(node: Node) -> Node | None:
    node = _same(node, _SAME)
    if node.target is _aten.mul.Tensor and node.args[1] == 1:  # as `1 / x` is exported
        node = _same(node.args[0], _SAME)  # type: ignore[arg-type]
    is_power = node.target is _aten.pow.Tensor_Scalar and node.args[1] == -1
    is_inverse = is_power or node.target is _aten.reciprocal.default
    return node.args[0] if is_inverse else None  # type: ignore[return-value]


def _weights(quotient: Node, dividend: Node, divisor: Node) -> _Weights | None:
    """What softmax, or what product of it, `quotient` is; None if it is none."""
    dividend, divisor = _same(dividend, _SAME), _same(divisor, _SAME)
    product = dividend if packet_of(dividend) in _PRODUCTS and len(dividend.users) == 1 else None
    operands: Any = [dividend] if product is None else product.args
    total = _without_epsilon(divisor)
    for position, exponentials in enumerate(_same(each, _SAME) for each in operands):
        if exponentials.target is not _aten.exp.default or len(exponentials.users) != 2:
            continue
        dims = _reduced(total, _SUMS, exponentials)
        scores, rows = _moved_scores(exponentials)
        found = _Weights(exponentials, scores, dims, product, position)
        has_least_one = total is divisor or rows == dims  # one exponential is 1
        is_row = bool(dims) and (not rows or rows >= dims) and _is_flat(dims, scores)
        if has_least_one and is_row and _is_alike(quotient, dividend, found):
            return found
    return None


def _moved_scores(exponentials: Node) -> tuple[Node, frozenset[int]]:
    """What the exponentials are of, without a maximum that is subtracted, and the dimensions of the latter."""
    given: Any = exponentials.args[0]
    if given.target is not _aten.sub.Tensor or given.kwargs:
        return given, frozenset()
    scores, largest = given.args
    if not isinstance(scores, torch.fx.Node) or not isinstance(largest, torch.fx.Node):
        return given, frozenset()
    rows = _reduced(largest, _MAXIMA, scores)
    return (scores, rows) if rows and scores.meta["val"].shape == given.meta["val"].shape else (given, frozenset())


def _is_flat(dims: frozenset[int], scores: Node) -> bool:
    """Whether `dims` are one, or follow each other and have known sizes."""
    sizes = [scores.meta["val"].shape[each] for each in dims]
    is_known = len(sizes) == 1 or all(isinstance(size, int) for size in sizes)
    return is_known and max(dims) - min(dims) == len(dims) - 1


def _is_alike(quotient: Node, dividend: Node, found: _Weights) -> bool:
    """Whether the operators return what `quotient` does, in its shape and dtype.

    Models that look for NaN behind a product keep theirs: `answer_empty_rows` looks behind a softmax itself.
    """
    values = [each.meta["val"] for each in (quotient, dividend, found.scores, found.of)]
    is_alike = bool(values[0].shape == values[1].shape) and len({value.dtype for value in values}) == 1
    if found.product is not None:
        ndim = values[2].ndim
        asks = any(packet_of(user) in (_aten.nan_to_num, _aten.isnan) for user in quotient.users)
        is_alike &= ndim > 1 and found.dims == {ndim - 1 - found.position} and not asks
    return is_alike and values[2].is_floating_point()


def _leave_out_by_infinity(scores: Node) -> None:
    """Let a mask in front of exponentials without a maximum leave rows of nothing NaN: their exponentials are all 0."""
    position = _NUMBER.get(scores.target)
    if position is not None and scores.args[position] <= MASKED and len(scores.users) == 1:  # type: ignore[operator]
        scores.update_arg(position, -math.inf)


def _softmax(node: Node, scores: Node, dims: list[int]) -> Node:
    """Calls softmax over dimensions that follow each other."""
    if len(dims) == 1:
        return called(node, _aten.softmax.int, scores, *dims)
    sizes = [scores.meta["val"].shape[each] for each in dims]
    flat = called(node, _aten.flatten.using_ints, scores, dims[0], dims[-1])
    return called(node, _aten.unflatten.int, called(node, _aten.softmax.int, flat, dims[0]), dims[0], sizes)


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
