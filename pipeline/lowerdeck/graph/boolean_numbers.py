"""Numbers that are 0 or 1 because they were made of booleans, as in `(1.0 - mask) * -1e9`."""

from __future__ import annotations

import operator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from lowerdeck.graph.masked_scores import CONVERTING, FULL, HANDING_ON, packet_of, reads_one_tensor
from lowerdeck.graph.retracing import called

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch.export import ExportedProgram
    from torch.fx import Node

_aten = torch.ops.aten

_ONE_NUMBER = {_aten.zeros_like: 0.0, _aten.new_zeros: 0.0, _aten.ones_like: 1.0, _aten.new_ones: 1.0}
_ARITHMETIC = (_aten.add, _aten.sub, _aten.rsub, _aten.mul, _aten.div, _aten.neg)


@dataclass(frozen=True)
class BooleanNumbers:
    """A tensor of numbers that are 0, and 1 or -1 where a boolean is true.

    Attributes:
        booleans: Calls what makes these booleans, at the place where the graph inserts.
        sign: 1 or -1.
        is_given: Whether an input has numbers of which the model makes a mask: by convention they are 0 and 1.
    """

    booleans: Callable[[], Node]
    sign: int = 1
    is_given: bool = False


def boolean_numbers(
    program: ExportedProgram, node: Any, values: Mapping[Node, Callable[[], Any]]
) -> BooleanNumbers | None:
    """What `node` is made of, if its elements are 0 and 1, or 0 and -1, by the way in which it is computed.

    Args:
        program: An ATen program.
        node: A node of it, or a number.
        values: The constants of the program.
    """
    value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    if not isinstance(value, torch.Tensor):
        return None
    if value.dtype == torch.bool:
        return BooleanNumbers(lambda: node)
    if node in values:
        known = values[node]()
        is_boolean = bool(((known == 0) | (known == 1)).all())
        return BooleanNumbers(lambda: called(node, _aten.ne.Scalar, node, 0)) if is_boolean else None
    if node.name in program.graph_signature.user_inputs:
        return BooleanNumbers(lambda: called(node, _aten.gt.Scalar, node, 0.5), is_given=True)
    packet = packet_of(node)
    if packet in (*CONVERTING, _aten.expand_as) or (packet in HANDING_ON and reads_one_tensor(node)):
        source = boolean_numbers(program, node.args[0], values)
        return source and replace(source, booleans=moved(node, source.booleans))
    if packet is _aten.neg:
        source = boolean_numbers(program, node.args[0], values)
        return source and replace(source, sign=-source.sign)
    if packet is _aten.mul:
        one, other = (boolean_numbers(program, each, values) for each in node.args)
        return one and other and _both(node, one, other)
    return _opposite(program, node, values)


def moved(node: Node, source: Callable[[], Node]) -> Callable[[], Node]:
    """What moves another tensor as `node`, one of HANDING_ON, moves its argument; the dtype stays."""
    if packet_of(node) in CONVERTING:
        return source
    if packet_of(node) is _aten.expand_as:
        return expanded(node, source)
    target = _aten.reshape.default if node.target == _aten.view.default else node.target
    given = expanded(node.args[0], source)
    return lambda: called(node, target, given(), *node.args[1:], **node.kwargs)


def expanded(node: Any, source: Callable[[], Node]) -> Callable[[], Node]:
    """`source` in the shape of `node`, which it does not read where the shape is known: nothing but softmax may."""

    def made() -> Node:
        found, shape = source(), node.meta["val"].shape
        given = found.meta["val"].shape
        if len(given) == len(shape) and all(map(statically_known_true, map(operator.eq, given, shape))):
            return found
        if all(isinstance(size, int) for size in shape):
            return called(node, _aten.expand.default, found, list(shape))
        return called(node, _aten.expand_as.default, found, node)

    return made


def only_number(value: Any, known: Mapping[Node, Callable[[], Any]], depth: int = 8) -> float | None:
    """The number that all elements of an argument have; None where they are not known, or differ.

    Args:
        value: A number, or a node of an ATen program: a constant, or a tensor of one number in the shape of another.
        known: The constants of the program.
        depth: How many operators may follow each other. Without a bound, a recurrence over time would be followed to
            its first step.
    """
    if not isinstance(value, torch.fx.Node):
        return float(value)
    if value in known:
        elements = known[value]().flatten()
        return float(elements[0]) if elements.numel() and bool((elements == elements[0]).all()) else None
    packet = packet_of(value)
    if packet in _ONE_NUMBER:
        return _ONE_NUMBER[packet]
    if not depth:
        return None
    if packet in _ARITHMETIC:
        return _computed_number(value, known, depth - 1)
    is_handed_on = packet in HANDING_ON and isinstance(value.args[0], torch.fx.Node)
    position = 0 if is_handed_on else FULL.get(packet)
    number = None if position is None else only_number(value.args[position], known, depth - 1)
    return None if number is None else torch.tensor(number, dtype=value.meta["val"].dtype).item()


def _computed_number(node: Node, known: Mapping[Node, Callable[[], Any]], depth: int) -> float | None:
    arguments: list[Any] = []
    given: Any = node.args
    for each in reversed(given):  # of a long sum, what is added to it says first that it is none
        if (number := only_number(each, known, depth)) is None:
            return None
        is_node = isinstance(each, torch.fx.Node)
        arguments.insert(0, torch.tensor(number, dtype=each.meta["val"].dtype) if is_node else each)
    return float(node.target(*arguments, **node.kwargs))  # type: ignore[operator]


def _both(node: Node, one: BooleanNumbers, other: BooleanNumbers) -> BooleanNumbers:
    def booleans() -> Node:
        return called(node, _aten.logical_and.default, one.booleans(), other.booleans())

    return BooleanNumbers(booleans, one.sign * other.sign, one.is_given or other.is_given)


def _opposite(program: ExportedProgram, node: Node, values: Mapping[Node, Callable[[], Any]]) -> BooleanNumbers | None:
    """What one minus booleans, or booleans minus one, are made of."""
    if packet_of(node) not in (_aten.sub, _aten.rsub) or node.kwargs or len(node.args) != 2:
        return None
    ones = [only_number(each, values) == 1 for each in node.args]
    if ones.count(True) != 1:
        return None
    source = boolean_numbers(program, node.args[ones.index(False)], values)
    if source is None or source.sign < 0:
        return None
    is_first = ones[0] != (packet_of(node) is _aten.rsub)
    booleans = partial(_not, node, source.booleans)
    return BooleanNumbers(booleans, 1 if is_first else -1, source.is_given)


def _not(node: Node, booleans: Callable[[], Node]) -> Node:
    return called(node, _aten.logical_not.default, booleans())
