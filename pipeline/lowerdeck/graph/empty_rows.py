"""Models that look for NaN behind a softmax, as it has where a mask of minus infinity leaves nothing of a row.

Programs have other numbers there, because masks become finite (`bound_masks`): the mask itself answers, and what is
computed from the softmax until the model asks hands the rows on, as it would hand on NaN.
"""

from __future__ import annotations

import math
import operator
from functools import partial, reduce
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from lowerdeck.graph.boolean_numbers import only_number
from lowerdeck.graph.masked_scores import CONVERTING, HANDING_ON, SOFTMAX, packet_of, reads_one_tensor
from lowerdeck.graph.masks import constants, stored_constant
from lowerdeck.graph.retracing import arguments_of, called, replace_other_uses
from lowerdeck.graph.scaled_masks import scaled_parts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch.export import ExportedProgram
    from torch.fx import Node

    _Known = Mapping[Node, Callable[[], Any]]
    _Places = Node | torch.Tensor
    """Booleans: a node where they depend on inputs, else their values."""

_aten = torch.ops.aten
_OF_NAN = {_aten.isnan: True, _aten.ne: True} | dict.fromkeys(
    (_aten.isfinite, _aten.isinf, _aten.eq, _aten.lt, _aten.le, _aten.gt, _aten.ge), False
)
"""What questions and comparisons answer to NaN."""
_ASKING = (_aten.nan_to_num, *_OF_NAN)
_PRODUCTS = {
    **dict.fromkeys((_aten.matmul, _aten.bmm, _aten.mm), (0, 1)),
    **dict.fromkeys((_aten.addmm, _aten.baddbmm), (1, 2)),
    _aten.linear: (0,),
}
"""Where matrices are that a product sums over: the last dimension of the first one, and the second last of another."""
_MOVING = (*HANDING_ON, _aten.flip, _aten.roll)
_REDUCING = (_aten.sum, _aten.mean, _aten.amax, _aten.amin, _aten.var, _aten.std, _aten.logsumexp)
_BY_ELEMENTS = (
    *(_aten.add, _aten.sub, _aten.rsub, _aten.mul, _aten.div, _aten.neg, _aten.abs, _aten.reciprocal, _aten.square),
    *(_aten.exp, _aten.log, _aten.log1p, _aten.sqrt, _aten.rsqrt, _aten.pow, _aten.clamp, _aten.maximum, _aten.minimum),
    *(_aten.relu, _aten.gelu, _aten.silu, _aten.tanh, _aten.sigmoid, _aten.leaky_relu, _aten.elu, _aten.softplus),
    *(_aten.hardtanh, _aten.hardswish, _aten.hardsigmoid),
)
"""Operators that have NaN where one of their operands has."""
_LAYERS = (
    *(_aten.linear, _aten.conv1d, _aten.conv2d, _aten.conv3d, _aten.embedding),
    *(_aten.layer_norm, _aten.group_norm, _aten.batch_norm),
)
"""Operators whose results are taken for usual numbers."""
_FINITE = (
    *(*_MOVING, *_LAYERS, *_PRODUCTS, _aten.sum, _aten.mean, _aten.amax, _aten.amin, _aten.cumsum),
    *(_aten.cat, _aten.stack, _aten.split, _aten.split_with_sizes, _aten.chunk, _aten.unbind),
    *(_aten.add, _aten.sub, _aten.rsub, _aten.mul, _aten.div, _aten.neg, _aten.abs, _aten.square, _aten.clamp),
    *(_aten.maximum, _aten.minimum, _aten.relu, _aten.gelu, _aten.silu, _aten.tanh, _aten.sigmoid),
    *(_aten.leaky_relu, _aten.elu, _aten.softplus, _aten.hardtanh, _aten.hardswish, _aten.hardsigmoid),
)
"""Operators that make usual numbers of usual ones; a division does by a number alone."""


def answer_empty_rows(program: ExportedProgram) -> None:
    """Let a mask in an ATen program say where `isnan`, `nan_to_num` and comparisons find NaN of a softmax.

    `rename_outputs` comes next. Where scores are infinite or NaN by themselves is not known before the program runs.
    Operators that are not listed here, such as another softmax, end the search.
    """
    asked = _asked(program.graph)
    if not any(node.target in SOFTMAX for node in asked):
        return
    found = _EmptyRows(program)
    for node in list(program.graph.nodes):
        if node in asked:
            with program.graph.inserting_before(node.next):
                found.find(node)
        elif packet_of(node) in _ASKING:
            with program.graph.inserting_before(node.next):
                found.answer(node)


def _asked(graph: torch.fx.Graph) -> set[Node]:
    """Calls of softmax, and of what hands their NaN on, whose NaN has another answer."""
    asked = set[torch.fx.Node]()
    waiting = [each for node in graph.nodes if packet_of(node) in _ASKING for each in node.all_input_nodes]
    while waiting:
        node = waiting.pop()
        value = node.meta.get("val")
        is_number = isinstance(value, torch.Tensor) and value.is_floating_point()
        if node in asked or not is_number or not (node.target in SOFTMAX or packet_of(node) in _HANDING_ON_NAN):
            continue
        asked.add(node)
        waiting.extend(node.all_input_nodes if node.target not in SOFTMAX else ())
    return asked


class _EmptyRows:
    """Where nodes of a program have NaN because a mask leaves nothing: booleans that broadcast to the node's shape.

    The graph inserts behind the node that is looked at.
    """

    def __init__(self, program: ExportedProgram) -> None:
        self._program = program
        self._known: _Known = constants(program, may_be_trained=True)
        self._nan: dict[Any, _Places] = {}

    def find(self, node: Node) -> None:
        """Note where `node` has NaN, if that is anywhere."""
        packet, arguments = packet_of(node), node.args
        if node.target in SOFTMAX:
            places = self._left_out(arguments[0], 1.0)
            dim: Any = arguments[1]
            if places is not None:
                places = self._along(node, _aten.all.dim, places, dim if dim < 0 else dim - node.meta["val"].ndim)
        else:
            places = _HANDING_ON_NAN[packet](self, node)
        if places is not None and (isinstance(places, torch.fx.Node) or bool(places.any())):
            self._nan[node] = places

    def moved(self, node: Node) -> _Places | None:
        """Of an operator whose result are elements of its first argument."""
        return self._moved(node, self._nan.get(node.args[0])) if reads_one_tensor(node) else None

    def by_elements(self, node: Node) -> _Places | None:
        """Of an operator that computes each element of its result from one of each operand."""
        return self._either(node, [self._nan.get(each) for each in node.args])

    def product(self, node: Node) -> _Places | None:
        """Of a product of matrices."""
        parts: list[_Places | None] = []
        for position, dim in zip(_PRODUCTS[packet_of(node)], (-1, -2), strict=False):
            operand: Any = node.args[position]
            if operand.meta["val"].ndim < 2:
                return None
            places = self._nan.get(operand)
            parts.append(None if places is None else self._along(node, _aten.any.dim, places, dim))
        return self._either(node, parts)

    def reduced(self, node: Node) -> _Places | None:
        """Of sums, means and extrema."""
        places, options = self._whole(node.args[0]), arguments_of(node)
        if places is None:
            return None
        dim = options.get("dim")
        dims = [dim] if isinstance(dim, int) else dim or None
        return self._call(node, _aten.any.dims, places, dims, options.get("keepdim", False))

    def summed_up(self, node: Node) -> _Places | None:
        """Of cumulative sums: from the first NaN on."""
        places = self._whole(node.args[0])
        if places is None:
            return None
        count = self._call(node, _aten.cumsum.default, places, node.args[1])
        return self._call(node, _aten.gt.Scalar, count, 0)

    def normalized(self, node: Node) -> _Places | None:
        """Of a layer norm."""
        places, shape = self._nan.get(node.args[0]), node.args[1]
        for dim in range(-len(shape), 0):  # type: ignore[arg-type]
            places = None if places is None else self._along(node, _aten.any.dim, places, dim)
        return places

    def joined(self, node: Node) -> _Places | None:
        """Of tensors that are concatenated or stacked."""
        operands: Any = node.args[0]
        if self._nan.keys().isdisjoint(operands):
            return None
        parts = [self._whole(each) for each in operands]
        parts = [
            self._call(node, _aten.zeros_like.default, each, dtype=torch.bool) if places is None else places
            for each, places in zip(operands, parts, strict=True)
        ]
        return self._call(node, node.target, parts, *node.args[1:], **node.kwargs)

    def answer(self, question: Node) -> None:
        """Let `question` have the model's answer where what it reads is NaN."""
        packet, operands = packet_of(question), question.args
        nothing = self._either(question, [self._whole(each) for each in dict.fromkeys(operands)])
        if nothing is None:
            return
        is_same = len(operands) > 1 and operands[0] is operands[1]
        has_no_other = all(map(self._is_finite, question.all_input_nodes))
        if packet is _aten.nan_to_num:
            number = arguments_of(question).get("nan") or 0.0
            source = operands[0] if has_no_other else question
            made = self._call(question, _aten.masked_fill.Scalar, source, nothing, number)
        elif not _OF_NAN[packet]:
            something = self._call(question, _aten.logical_not.default, nothing)
            is_only_nan = has_no_other and (packet is _aten.isfinite or (packet is _aten.eq and is_same))
            made = something if is_only_nan else self._call(question, _aten.logical_and.default, question, something)
        else:
            is_only_nan = has_no_other and (packet is _aten.isnan or is_same)
            made = nothing if is_only_nan else self._call(question, _aten.logical_or.default, question, nothing)
        replace_other_uses(question, made if isinstance(made, torch.fx.Node) else self._stored(question, made))
        if not question.users:
            question.graph.erase_node(question)

    def _is_finite(self, node: Node) -> bool:
        """Whether `node` has no NaN, and nothing infinite, for another reason, such as the logarithm of 0."""
        waiting, seen = [node], set[torch.fx.Node]()
        while waiting:
            each = waiting.pop()
            packet = packet_of(each)
            is_layer = packet in _LAYERS and each not in self._nan
            if each in seen or each.target in SOFTMAX or (each.op == "placeholder" and each not in self._known):
                continue
            seen.add(each)
            if each in self._known:
                numbers = [self._known[each]()]
            else:
                numbers = [torch.tensor(one) for one in each.args if isinstance(one, (int, float))]
                is_by_zero = packet is _aten.div and not (numbers and bool(numbers[0]))
                if is_by_zero or not (packet in _FINITE or each.target is operator.getitem):
                    return False
                waiting.extend(each.all_input_nodes if not is_layer else ())
            if not all(bool(one.isfinite().all()) for one in numbers):
                return False
        return True

    def _left_out(self, scores: Any, factor: float) -> _Places | None:
        """Where `scores`, times a factor, are minus infinity by a mask; None if there is none."""
        packet = packet_of(scores)
        if not isinstance(scores, torch.fx.Node):
            return torch.tensor(True) if scores * factor == -math.inf else None
        if scores in self._known:
            known: torch.Tensor = self._known[scores]() * factor == -math.inf
            return known if bool(known.any()) else None
        if packet in HANDING_ON:
            return self._moved(scores, self._left_out(scores.args[0], factor)) if reads_one_tensor(scores) else None
        if packet is _aten.masked_fill:
            values, mask, number = scores.args
            return self._chosen(scores, mask, (number, values), factor)
        if packet is _aten.where and len(scores.args) == 3:
            return self._chosen(scores, scores.args[0], scores.args[1:], factor)
        return self._either(scores, [self._left_out(*part) for part in scaled_parts(scores, factor, self._known)])

    def _chosen(self, node: Node, mask: Any, chosen: Sequence[Any], factor: float) -> _Places | None:
        """`_left_out` of what has the first of two tensors, or numbers, where `mask` is true."""
        numbers = [only_number(each, self._known) for each in chosen]
        mask = self._known[mask]() if mask in self._known else mask
        is_left_out = [number is not None and number * factor == -math.inf for number in numbers]
        parts: list[_Places | None] = []
        for position, value in enumerate(chosen):
            places = None if numbers[position] is not None else self._left_out(value, factor)
            if places is None and not is_left_out[position]:
                continue
            if places is None or not is_left_out[1 - position]:
                here = self._call(node, _aten.logical_not.default, mask) if position else mask
                places = here if places is None else self._call(node, _aten.logical_and.default, places, here)
            parts.append(places)
        return self._either(node, parts)

    def _moved(self, node: Node, places: _Places | None) -> _Places | None:
        """What moves booleans as `node`, one of HANDING_ON, moves its argument; the dtype stays."""
        if places is None or packet_of(node) in CONVERTING:
            return places
        target = _aten.reshape.default if node.target == _aten.view.default else node.target
        source: Any = node.args[0]
        return self._call(node, target, self._expanded(source, places), *node.args[1:], **node.kwargs)

    def _along(self, node: Node, target: Any, places: _Places, dim: int) -> _Places:
        """Whether all, or any, are true along a dimension, which is counted from the last one and kept."""
        shape = _value_of(places).shape
        is_alike = -dim > len(shape) or (isinstance(shape[dim], int) and shape[dim] == 1)
        return places if is_alike else self._call(node, target, places, dim, True)

    def _either(self, node: Node, parts: Sequence[_Places | None]) -> _Places | None:
        found = [part for part in parts if part is not None]
        return reduce(partial(self._call, node, _aten.logical_or.default), found) if found else None

    def _whole(self, node: Any) -> _Places | None:
        """Where `node` has NaN, in its shape."""
        return self._expanded(node, self._nan[node]) if node in self._nan else None

    def _expanded(self, node: Node, places: _Places) -> _Places:
        """`places` in the shape of `node`, which it does not read where that is known: nothing but softmax may."""
        shape = node.meta["val"].shape
        if all(isinstance(size, int) for size in shape):
            is_whole = _value_of(places).shape == shape
            return places if is_whole else self._call(node, _aten.expand.default, places, list(shape))
        return self._call(node, _aten.expand_as.default, places, node)

    def _call(self, node: Node, target: Any, *args: Any, **kwargs: Any) -> _Places:
        """A new call with the place of `node` in the model, or its result where nothing of it depends on inputs."""
        if not any(isinstance(each, torch.fx.Node) for each in tree_leaves((args, kwargs))):
            result: torch.Tensor = target(*args, **kwargs)
            return result
        return called(node, target, *tree_map_only(torch.Tensor, lambda each: self._stored(node, each), args), **kwargs)

    def _stored(self, node: Node, value: torch.Tensor) -> Node:
        """A constant of the program; what is expanded is so again, rather than stored."""
        small = value[tuple(slice(0, 1 if not stride else None) for stride in value.stride())].contiguous()
        made = stored_constant(self._program, "left_out", small)
        return made if small.shape == value.shape else called(node, _aten.expand.default, made, list(value.shape))


def _value_of(places: _Places) -> Any:
    return places.meta["val"] if isinstance(places, torch.fx.Node) else places


_HANDING_ON_NAN: dict[Any, Callable[[_EmptyRows, Node], _Places | None]] = {
    **dict.fromkeys(_MOVING, _EmptyRows.moved),
    **dict.fromkeys(_BY_ELEMENTS, _EmptyRows.by_elements),
    **dict.fromkeys(_PRODUCTS, _EmptyRows.product),
    **dict.fromkeys(_REDUCING, _EmptyRows.reduced),
    _aten.cumsum: _EmptyRows.summed_up,
    _aten.layer_norm: _EmptyRows.normalized,
    **dict.fromkeys((_aten.cat, _aten.stack), _EmptyRows.joined),
}
"""What hands NaN on, each with where it does."""
