"""Scores that are scaled behind their mask: as if they were scaled before, so that the mask ends with a known number.

`masked_fill(scores, mask, -1e9) / 8` has the weights of `masked_fill(scores / 8, mask, -1e4)`, and
`scores - mask * 1e9` those of `scores + mask * -1e4`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from lowerdeck.graph.boolean_numbers import BooleanNumbers, boolean_numbers, expanded, only_number
from lowerdeck.graph.masked_scores import CHOOSING, HANDING_ON, MASKED, packet_of
from lowerdeck.graph.retracing import called

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Node

_aten = torch.ops.aten
_GIVEN = -1e6
"""A product of an input with less is a mask; more may be a temperature."""
NO_FACTOR = -1e30
"""A product of anything with less is a mask, because factors other than 0 and 1 would be infinite."""
ALL_ALIKE = -1e8
"""Float32 has steps of 8 here, so that scores to which it is added have equal weights."""
STILL_MASKED = MASKED / 16
"""-1e4 that is scaled by the root of 256 features is one still; exp of it is zero."""
_OF_SCORES = (_aten.softmax, _aten._softmax)


def least_factor(program: ExportedProgram, product: Node, values: Mapping[Node, Callable[[], Any]]) -> float:
    """The number from which on, downwards, `product` of a tensor and that number is a mask."""
    found = boolean_numbers(program, product.args[0], values)
    if found is None or found.sign < 0 or (found.is_given and not _is_added(product)):
        return NO_FACTOR
    return _GIVEN if found.is_given else MASKED


def _is_added(node: Node) -> bool:
    """Whether scores are added to `node`, or it is subtracted from them, unless it is scores by itself.

    Others, such as comparisons, may read it, too.
    """
    readers = set(_readers(node))
    return not readers.isdisjoint((_aten.add, _aten.sub)) and readers.isdisjoint(_OF_SCORES)


def _readers(node: Node) -> Iterator[Any]:
    """The operators that read `node`, also behind those that move it."""
    for user in node.users:
        packet = packet_of(user)
        if packet in HANDING_ON:
            yield from _readers(user)
        else:
            yield packet


def scale_before_masks(
    program: ExportedProgram, readers: Iterable[Node], values: Mapping[Node, Callable[[], Any]]
) -> bool:
    """Let softmax read scores that are scaled, or negated, before they are masked.

    Args:
        program: An ATen program.
        readers: Calls of softmax, in their order.
        values: The constants of the program.

    Returns:
        Whether any did not before.
    """
    scaled, is_changed = _Scaled(program, values), False
    for node in readers:
        scores: Any = node.args[0]
        if scaled.has_mask(scores, 1.0):
            with program.graph.inserting_before(node):
                node.update_arg(0, scaled.made(scores, 1.0))
            is_changed = True
    return is_changed


def scaled_parts(node: Node, factor: float, values: Mapping[Node, Callable[[], Any]]) -> list[tuple[Any, float]]:
    """The operands of `node` that it is the sum of, or chooses from, or moves.

    Args:
        node: A call.
        factor: By what `node` is multiplied.
        values: The constants of the program.

    Returns:
        Each operand with its factor; none of operators that do something else.
    """
    packet, arguments = packet_of(node), node.args
    if packet in CHOOSING and len(arguments) > max(CHOOSING[packet]):
        return [(arguments[position], factor) for position in CHOOSING[packet]]
    if packet in HANDING_ON and node.meta["val"].is_floating_point():
        return [(arguments[0], factor)]
    if packet in (_aten.add, _aten.sub) and not node.kwargs and len(arguments) == 2:
        return [(arguments[0], factor), (arguments[1], factor if packet is _aten.add else -factor)]
    if packet is _aten.neg:
        return [(arguments[0], -factor)]
    if node.target in (_aten.mul.Tensor, _aten.mul.Scalar, _aten.div.Tensor, _aten.div.Scalar):
        is_first = packet is _aten.mul and only_number(arguments[0], values) is not None
        scaled, scale = reversed(arguments) if is_first else arguments
        number = only_number(scale, values)
        if number and math.isfinite(number):
            return [(scaled, factor * number if packet is _aten.mul else factor / number)]
    return []


class _Scaled:
    """Products of the tensors of a program with numbers that move to where these tensors come from."""

    def __init__(self, program: ExportedProgram, values: Mapping[Node, Callable[[], Any]]) -> None:
        self._program, self._values = program, values
        self.has_mask, self.made = cache(self._has_mask), cache(self._made)

    def _has_mask(self, node: Any, factor: float) -> bool:
        """Whether part of `node`, times `factor`, is a mask of which the number has to be scaled."""
        if not isinstance(node, torch.fx.Node):
            return factor != 1 and abs(node) >= -MASKED and node * factor <= STILL_MASKED
        if node in self._values:
            value = self._values[node]()
            is_number = isinstance(value, torch.Tensor) and value.is_floating_point()
            return factor != 1 and is_number and bool((value * factor <= MASKED).any())
        return self._masks_by(node, factor) not in (None, 1) or any(
            self.has_mask(each, one) for each, one in scaled_parts(node, factor, self._values)
        )

    def _masks_by(self, node: Node, factor: float) -> float | None:
        """By what the numbers of a mask `booleans * number` are scaled; None of anything else."""
        if packet_of(node) is not _aten.mul or (number := only_number(node.args[1], self._values)) is None:
            return None
        found = boolean_numbers(self._program, node.args[0], self._values)
        if found is None or (found.is_given and not _is_added(node)):
            return factor if number * factor <= NO_FACTOR else None
        scale = factor * found.sign
        is_mask = abs(number) >= -(_GIVEN if found.is_given else MASKED) and number * scale <= STILL_MASKED
        return scale if is_mask else None

    def _made(self, node: Any, factor: float) -> Any:
        """`node` times `factor`, with masks as they have to be."""
        if not self.has_mask(node, factor):
            return self._product(node, factor)
        if not isinstance(node, torch.fx.Node):
            return min(node * factor, MASKED)
        if node in self._values:
            return self._product(node, factor)
        if (scale := self._masks_by(node, factor)) is not None:
            number = only_number(node.args[1], self._values) or 0.0
            found = boolean_numbers(self._program, node.args[0], self._values)
            return called(node, _aten.mul.Tensor, self._numbers(node, found), min(number * scale, MASKED))
        parts = [self.made(*each) for each in scaled_parts(node, factor, self._values)]
        packet, arguments = packet_of(node), list[Any](node.args)
        if packet in CHOOSING:
            for position, part in zip(CHOOSING[packet], parts, strict=True):
                arguments[position] = part
            return called(node, node.target, *arguments, **node.kwargs)
        if packet in HANDING_ON:
            return called(node, node.target, *parts, *arguments[1:], **node.kwargs)
        return called(node, _aten.add.Tensor, *parts) if len(parts) == 2 else parts[0]

    def _numbers(self, product: Node, found: BooleanNumbers | None) -> Any:
        """What leaves out where it is 1; an input is left as it is, because it may have other numbers than 0 and 1."""
        factor: Any = product.args[0]
        if found is None or (found.is_given and found.sign > 0):
            return expanded(product, lambda: factor)()
        if found.is_given:
            return expanded(product, lambda: called(product, _aten.neg.default, factor))()
        booleans = expanded(product, found.booleans)()
        return called(product, _aten.to.dtype, booleans, product.meta["val"].dtype)

    def _product(self, node: Any, factor: float) -> Any:
        if factor == 1:
            return node
        if not isinstance(node, torch.fx.Node):
            return node * factor
        return called(node, _aten.mul.Tensor, node, factor)
