"""What the elements of tensors are: kinds of numbers, between which bounds, in which units, as far as is known.

The unit of a tensor is by how much a model multiplies what a layer returns, whose results are in the order of 1.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.utils._pytree import tree_leaves

from lowerdeck.graph.masked_scores import CONVERTING, FULL, HANDING_ON, MASKED, packet_of, stored_tensors
from lowerdeck.graph.masks import computed, constants
from lowerdeck.graph.retracing import arguments_of

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import GraphModule, Node

    Interval = tuple[float, float]
    Values = Mapping[Node, Callable[[], Any]]

_aten = torch.ops.aten
CONCATENATING = (_aten.cat, _aten.concat, _aten.concatenate)
_STACKING = (_aten.stack, _aten.hstack, _aten.vstack, _aten.dstack, _aten.column_stack)
JOINING: dict[Any, tuple[int, ...]] = {
    **dict.fromkeys((*CONCATENATING, *_STACKING), (0,)),
    **dict.fromkeys((_aten.slice_scatter, _aten.select_scatter), (0, 1)),
    **dict.fromkeys((_aten.index_put, _aten.masked_scatter, _aten.masked_fill), (0, 2)),
    **dict.fromkeys((_aten.index_copy, _aten.index_fill, _aten.scatter), (0, 3)),
    _aten.where: (1, 2),
}
"""Operators that put tensors beside each other, with the arguments that have these."""
SEPARATING = (
    *(_aten.slice, _aten.select, _aten.narrow, _aten.split, _aten.split_with_sizes, _aten.chunk, _aten.tensor_split),
    *(_aten.unbind, _aten.index, _aten.index_select, _aten.gather, _aten.take_along_dim, operator.getitem),
)
"""Operators whose results may be one of the quantities that were put together."""
_ORDERING = (
    *(_aten.topk, _aten.sort, _aten.max, _aten.amax, _aten.min, _aten.amin, _aten.flip, _aten.roll),
    *(_aten.argmax, _aten.argmin, _aten.argsort),
)
_PADDING = (_aten.pad, _aten.constant_pad_nd)
MOVING = (*HANDING_ON, *SEPARATING, *_ORDERING, *_PADDING, _aten.copy, _aten.repeat_interleave, _aten.einsum)
"""Operators whose results are elements of one argument, or places of these, beside a number."""
_KEEPING_UNITS = (
    *(_aten.add, _aten.sub, _aten.rsub, _aten.maximum, _aten.minimum, _aten.neg, _aten.abs, _aten.relu),
    *(_aten.mean, _aten.sum, _aten.avg_pool1d, _aten.avg_pool2d, _aten.adaptive_avg_pool2d, _aten.max_pool2d),
    *(_aten.clamp, _aten.clip, _aten.clamp_min, _aten.clamp_max, _aten.hardtanh),
)
READING_SHAPES = (
    *(_aten.zeros_like, _aten.ones_like, _aten.full_like, _aten.empty_like, _aten.new_zeros, _aten.new_ones),
    *(_aten.new_full, _aten.new_empty, _aten.sym_size, _aten._assert_tensor_metadata),
)
"""Operators that read nothing of a tensor but its shape and data type."""
LAYERS = (
    *(_aten.linear, _aten.bilinear, _aten.matmul, _aten.mm, _aten.bmm, _aten.addmm, _aten.addbmm, _aten.baddbmm),
    *(_aten.mv, _aten.addmv, _aten.dot, _aten.einsum, _aten.conv1d, _aten.conv2d, _aten.conv3d, _aten.convolution),
    *(_aten.conv_transpose1d, _aten.conv_transpose2d, _aten.conv_transpose3d, _aten.scaled_dot_product_attention),
    *(_aten.lstm, _aten.gru, _aten.rnn_tanh, _aten.rnn_relu, _aten.embedding),
)
"""Operators that have weights, or multiply two computed tensors as if one were weights."""
_ARITHMETIC_OF_TWO = (_aten.mul, _aten.div, _aten.add, _aten.sub, _aten.rsub)
_ARITHMETIC_OF_THREE = (_aten.addcmul, _aten.addcdiv, _aten.lerp)
NUMBERS, WHOLE, BELOW_1 = "numbers", "whole numbers", "numbers up to 1"
_ANY: Interval = (-math.inf, math.inf)
_MOST_CONSTANTS = 64
"""A constant with more of them is a window, a grid or weights rather than units of a few quantities."""
_FIRST = 4096
"""Elements of a constant that show whether it has many distinct ones, which sorting all of it takes long to find."""
_WIDTH = 6.0
"""Of the range of a quantity, in units: three standard deviations on each side."""
_MOST_WIDTHS = 8
"""A range of as many widths of its least quantity leaves this one less than 5 of 8 bits, some 25 dB."""
_OF_BYTES = (1.0, 1 / 255)
"""Units in which the mean of an image's colours may be up to 255, without a factor that says how wide they are."""


class Units(NamedTuple):
    """The least and largest factor by which the elements of a tensor were multiplied, and what was added.

    Attributes:
        least: Of the factors' magnitudes, more than 0.
        largest: Of the same.
        lowest: Of the numbers that were added.
        highest: Of the same.
    """

    least: float = 1.0
    largest: float = 1.0
    lowest: float = 0.0
    highest: float = 0.0

    @property
    def are_spread(self) -> bool:
        """Whether a step with them makes more of a tensor than a multiple."""
        return bool(self.lowest or self.highest) or self.least < self.largest

    @property
    def are_unlike(self) -> bool:
        """Whether one scale of 8 bits for all, and for the zero that every scale has, is too coarse for the least."""
        low, high = self.lowest - _WIDTH / 2 * self.largest, self.highest + _WIDTH / 2 * self.largest
        if not self._may_be_of_bytes:
            low, high = min(low, 0.0), max(high, 0.0)
        return high - low > _MOST_WIDTHS * _WIDTH * self.least

    @property
    def _may_be_of_bytes(self) -> bool:
        is_unit = self.least == self.largest and any(math.isclose(self.least, each, rel_tol=1e-5) for each in _OF_BYTES)
        return is_unit and self.lowest >= 0 and self.highest <= 255 * self.least * (1 + 1e-5)


class Step(NamedTuple):
    """A product with a constant, a sum with one, or both: a batch norm.

    Attributes:
        source: What is multiplied.
        units: Factors and summands.
        shifts: The least and largest summand, each divided by its factor.
    """

    source: Node
    units: Units
    shifts: Interval


class Quantity(NamedTuple):
    """What the elements of a tensor are.

    Attributes:
        kinds: Some of NUMBERS, WHOLE and BELOW_1; none for constants.
        bounds: The least and the largest number that they can be.
        units: None where they are not known, as those of inputs.
    """

    kinds: frozenset[str]
    bounds: Interval = _ANY
    units: Units | None = None


def known_values(program: GraphModule | ExportedProgram) -> Values:
    """What no input of an ATen program, or of a module of one, changes, with what returns it."""
    if not isinstance(program, torch.fx.GraphModule):
        return constants(program, may_be_trained=True)
    given = {node: partial(_itself, value) for node, value in stored_tensors(program).items()}
    return computed(program.graph, given)


def _itself(value: Any) -> Any:
    return value


def quantities(graph: torch.fx.Graph, values: Values) -> dict[Node, Quantity]:
    """The quantity that each node of a graph is.

    Args:
        graph: Of an ATen program as a module.
        values: Of `known_values`.
    """
    known = dict[torch.fx.Node, Quantity]()
    for node in graph.nodes:
        known[node] = _quantity(node, known, values)
    return known


def step_of(node: Node, values: Values) -> Step | None:
    """What a node multiplies and adds to one tensor, None if it does something else or the constants are many."""
    packet = packet_of(node)
    if packet is _aten.batch_norm:
        return _step_of_batch_norm(node, values)
    if packet in _ARITHMETIC_OF_THREE:
        return _step_of_three(node, values)
    if packet not in _ARITHMETIC_OF_TWO or "rounding_mode" in node.kwargs:
        return None
    first, second = node.args[:2]
    is_turned = not isinstance(first, torch.fx.Node) or first in values
    source, other = (second, first) if is_turned else (first, second)
    numbers = _numbers(other, values)
    if not isinstance(source, torch.fx.Node) or source in values or numbers is None:
        return None
    if packet is _aten.div:
        return None if is_turned else _step(source, 1 / numbers[numbers != 0], torch.zeros(1))
    if packet is _aten.mul:
        return _step(source, numbers, torch.zeros(1))
    of_first, of_second = _signs(node)
    of_source, of_other = (of_second, of_first) if is_turned else (of_first, of_second)
    return _step(source, torch.tensor([of_source], dtype=torch.double), _without_mask(numbers * of_other))


def _without_mask(summands: torch.Tensor) -> torch.Tensor:
    """What is added where the number of a mask leaves nothing out: mask_numbers.py tells where those count."""
    kept = summands[summands > MASKED]
    return kept if kept.numel() and not kept.any() else summands


def _signs(node: Node) -> tuple[float, float]:
    """By what a sum or a difference multiplies its two arguments."""
    packet, alpha = packet_of(node), float(arguments_of(node).get("alpha", 1))
    return (-alpha, 1.0) if packet is _aten.rsub else (1.0, -alpha if packet is _aten.sub else alpha)


def _step_of_three(node: Node, values: Values) -> Step | None:
    """Of a sum with a product or a quotient, or of what is between two constants."""
    packet, arguments = packet_of(node), node.args[:3]
    tensors = [_constant(each, values) for each in arguments]
    sources = [each for each in arguments if isinstance(each, torch.fx.Node) and each not in values]
    if len(sources) != 1 or any(each is not None and each.numel() > _MOST_CONSTANTS for each in tensors):
        return None
    first, second, third = (torch.zeros(1, dtype=torch.double) if each is None else each.double() for each in tensors)
    at = arguments.index(sources[0])
    if packet is _aten.lerp:
        factors, summands = ((1 - third, second * third), (third, first * (1 - third)), (second - first, first))[at]
        return _step(sources[0], factors, summands)
    value = float(arguments_of(node)["value"])
    if packet is _aten.addcdiv:
        if at == 2 or (third == 0).any():
            return None
        third = 1 / third
    factors, summands = ((torch.ones(1), second * third * value), (third * value, first), (second * value, first))[at]
    return _step(sources[0], factors, summands)


def _step(source: Node, factors: torch.Tensor, summands: torch.Tensor) -> Step | None:
    magnitudes = factors.abs()
    magnitudes = magnitudes[magnitudes > 0]
    if not magnitudes.numel() or not bool(magnitudes.isfinite().all() and summands.isfinite().all()):
        return None
    shifts = summands / torch.where(factors == 0, 1.0, factors)
    units = Units(*(float(each) for each in (*magnitudes.aminmax(), *summands.aminmax())))
    return Step(source, units, (float(shifts.min()), float(shifts.max())))


def _step_of_batch_norm(node: Node, values: Values) -> Step | None:
    given = arguments_of(node)
    source, is_training = given["input"], given["training"]
    mean, var, weight, bias = (_few(given[name], values) for name in ("running_mean", "running_var", "weight", "bias"))
    if is_training or mean is None or var is None:
        return None
    if packet_of(source) in LAYERS:  # what was trained has the layer's statistics, and undoes them
        mean, var = torch.zeros_like(mean), torch.ones_like(var)
    factors = (torch.ones_like(mean) if weight is None else weight) / (var + given["eps"]).sqrt()
    return _step(source, factors, (torch.zeros_like(mean) if bias is None else bias) - mean * factors)


def _constant(argument: Any, values: Values) -> torch.Tensor | None:
    """A constant in its own data type, a number as float64."""
    if isinstance(argument, (int, float)):
        return torch.tensor([float(argument)], dtype=torch.double)
    value = values[argument]() if isinstance(argument, torch.fx.Node) and argument in values else None
    return value.detach() if isinstance(value, torch.Tensor) and not value.is_complex() else None


def _few(argument: Any, values: Values) -> torch.Tensor | None:
    """A constant of at most _MOST_CONSTANTS elements as float64."""
    value = _constant(argument, values)
    return None if value is None or value.numel() > _MOST_CONSTANTS else value.double()


def _numbers(argument: Any, values: Values) -> torch.Tensor | None:
    """The distinct numbers of a constant as float64, None if it is none or has many."""
    value = _constant(argument, values)
    for part in () if value is None else (_first(value), value):
        distinct = torch.unique(part)
        if not 0 < distinct.numel() <= _MOST_CONSTANTS:
            return None
    return None if value is None else distinct.double()


def _first(value: torch.Tensor) -> torch.Tensor:
    """A view of at most _FIRST elements at the start of a tensor."""
    left = _FIRST
    for dim in reversed(range(value.ndim)):
        value = value.narrow(dim, 0, min(value.shape[dim], max(left, 1)))
        left //= max(value.shape[dim], 1)
    return value


def handed_on(node: Node) -> list[Any]:
    """The arguments of which a node's results are elements."""
    packet = operator_of(node)
    if packet in JOINING:
        return tree_leaves([node.args[at] for at in JOINING[packet] if at < len(node.args)])
    if is_sum_of_padded(node):
        return list(node.args[:2])
    if packet is _aten.copy:
        return [node.args[1]]
    if packet is _aten.einsum:
        read = tree_leaves(node.args[1])
        return read if len(read) == 1 else []
    return [node.args[0]] if packet in (*CONVERTING, *MOVING) else []


def is_sum_of_padded(node: Node) -> bool:
    """Whether a node puts two tensors beside each other by adding zeros to each."""
    read = node.all_input_nodes
    return packet_of(node) is _aten.add and len(read) == 2 and all(packet_of(each) in _PADDING for each in read)


def is_beside_far_constant(node: Node, known: Mapping[Node, Quantity], values: Values) -> bool:
    """Whether a node puts numbers beside a constant so far from them, as -999 for what is left out, that they are lost.

    Numbers of masks, which are larger, stay in float by themselves (mask_numbers.py).
    """
    is_padding = packet_of(node) in _PADDING
    if not is_padding and operator_of(node) not in JOINING:
        return False
    joined = [*handed_on(node), arguments_of(node)["value"] if is_padding else None]
    sources = [known[each] for each in joined if isinstance(each, torch.fx.Node) and known[each].kinds]
    widths = [each.bounds[1] - each.bounds[0] for each in sources]
    widths += [_WIDTH * each.units.least for each in sources if each.units is not None]
    numbers = [number for each in joined for number in _ends_of_constant(each, known, values)]
    numbers = [0.0, *(each for each in numbers if abs(each) < -MASKED)]
    least = min((each for each in widths if each > 0), default=math.inf)
    return max(numbers) - min(numbers) > _MOST_WIDTHS * least


def _ends_of_constant(argument: Any, known: Mapping[Node, Quantity], values: Values) -> Interval | tuple[()]:
    """The least and the largest number of a constant, nothing of anything else."""
    if isinstance(argument, torch.fx.Node) and packet_of(argument) in FULL:
        argument = argument.args[FULL[packet_of(argument)]]
    if argument is None or (isinstance(argument, torch.fx.Node) and known[argument].kinds):
        return ()
    return _bounds_of(argument, known, values)


def operator_of(node: Node) -> Any:
    """The operator that a node calls, also if it is not one of PyTorch's."""
    return packet_of(node) or node.target


def _quantity(node: Node, known: Mapping[Node, Quantity], values: Values) -> Quantity:
    is_called, read = node.op == "call_function", node.all_input_nodes
    is_constant = node in values or node.op == "get_attr" or packet_of(node) in READING_SHAPES
    if is_constant or (is_called and not any(known[each].kinds for each in read)):
        return Quantity(frozenset())  # a constant has the quantization of its own
    if not is_called:
        return Quantity(frozenset({NUMBERS}))
    value = node.meta.get("val")
    if isinstance(value, torch.Tensor) and not value.is_floating_point():
        is_boolean = value.dtype == torch.bool
        return Quantity(frozenset({BELOW_1 if is_boolean else WHOLE}), (0.0, 1.0) if is_boolean else _ANY, Units())
    bounds, sources = _bounds(node, known, values), [known[each] for each in _sources(node, known)]
    kinds = frozenset[str]().union(*(each.kinds for each in sources))
    if not handed_on(node) and len(kinds) < 2:
        kinds = frozenset({NUMBERS})
    if kinds != {WHOLE} and -1 <= bounds[0] <= bounds[1] <= 1:
        kinds = frozenset({BELOW_1})
    return Quantity(kinds or frozenset({NUMBERS}), bounds, _units(node, known, values))


def _sources(node: Node, known: Mapping[Node, Quantity]) -> list[Node]:
    """What a node hands on, or changes element by element."""
    read = handed_on(node)
    if not read and is_elementwise(node, known):
        read = [each for each in _read(node, known) if known[each].kinds != {BELOW_1}]
    return [each for each in read if isinstance(each, torch.fx.Node)]


def is_elementwise(node: Node, known: Mapping[Node, Quantity]) -> bool:
    """Whether a node limits, scales or shifts the elements of one tensor, or multiplies them by others up to 1."""
    if operator_of(node) in _CUTTING:
        return True
    operands = [each for each in node.args if isinstance(each, torch.fx.Node)]
    others = [each for each in operands if known[each].kinds not in (set(), {BELOW_1})]
    is_product = packet_of(node) is _aten.mul
    return packet_of(node) in _ARITHMETIC_OF_TWO and len(others) == 1 and (is_product or len(_read(node, known)) == 1)


def is_weightless(node: Node, values: Values) -> bool:
    """Whether a node calls an operator of PyTorch's that computes with no weights, so that little is lost in float."""
    packet = packet_of(node)
    if packet is None or packet in LAYERS:
        return False
    return all(
        _numbers(each, values) is not None for each in node.all_input_nodes if each in values and _is_float(each)
    )


def _is_float(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _read(node: Node, known: Mapping[Node, Quantity]) -> list[Node]:
    """What a node reads that is no constant."""
    return [each for each in node.all_input_nodes if known[each].kinds]


def _units(node: Node, known: Mapping[Node, Quantity], values: Values) -> Units | None:
    step, packet = step_of(node, values), operator_of(node)
    if step is not None:
        before = known[step.source].units
        return None if before is None else _scaled(before, step.units)
    if packet in (_aten.mul, _aten.div) and any(each in values for each in node.all_input_nodes):
        return None
    read = _sources(node, known) or (_read(node, known) if packet in _KEEPING_UNITS else [])
    if read:
        return _hull([known[each].units for each in read])
    if packet in (_aten.mul, _aten.div):
        low, high = _bounds(node, known, values)
        return Units() if -1 <= low <= high <= 1 else None
    is_layer = any(each in values for each in node.all_input_nodes)
    return Units() if is_layer or any(known[each].units for each in node.all_input_nodes) else None


def _scaled(before: Units, by: Units) -> Units:
    low, high = _times((before.lowest, before.highest), (by.least, by.largest))
    return Units(before.least * by.least, before.largest * by.largest, low + by.lowest, high + by.highest)


def _hull(found: Sequence[Units | None]) -> Units | None:
    known = [each for each in found if each is not None]
    if not known:
        return None
    least, largest, lowest, highest = zip(*known, strict=True)
    return Units(min(least), max(largest), min(lowest), max(highest))


def _bounds(node: Node, known: Mapping[Node, Quantity], values: Values) -> Interval:
    packet = operator_of(node)
    if packet in _BETWEEN:
        return _BETWEEN[packet]
    if packet is _aten.div and _is_norm(node.args[1], node.args[0]):
        return -1.0, 1.0
    read = handed_on(node)
    if read:
        given = [_bounds_of(each, known, values) for each in read]
        given += [_bounds_of(arguments_of(node)["value"] or 0.0, known, values)] if packet in _PADDING else []
        return min(low for low, _ in given), max(high for _, high in given)
    if packet not in _ARITHMETIC or node.kwargs:
        return _ANY
    return _ARITHMETIC[packet](*(_bounds_of(each, known, values) for each in node.args[: _ARITY.get(packet, 1)]))


def _bounds_of(argument: Any, known: Mapping[Node, Quantity], values: Values) -> Interval:
    value = _constant(argument, values)
    if value is not None and value.numel() and not value.isnan().any():
        return float(value.min()), float(value.max())
    return known[argument].bounds if isinstance(argument, torch.fx.Node) else _ANY


def _is_norm(divisor: Any, of: Any) -> bool:
    """Whether a divisor is the norm of what is divided, as in F.normalize."""
    while isinstance(divisor, torch.fx.Node) and packet_of(divisor) in (*HANDING_ON, *_CUTTING, _aten.add):
        divisor = divisor.args[0]
    return packet_of(divisor) in (_aten.linalg_vector_norm, _aten.norm) and divisor.args[0] is of


_UP_TO_1 = (
    *(_aten.sigmoid, _aten.special_expit, _aten.hardsigmoid, _aten.softmax, _aten._softmax),
    *(_aten.tanh, _aten.sin, _aten.cos),
)
_BETWEEN: dict[Any, Interval] = {
    packet: (-1.0 if packet in (_aten.tanh, _aten.sin, _aten.cos) else 0.0, 1.0) for packet in _UP_TO_1
}
"""Bounds of results, whatever is read."""


def _product(x: float, y: float) -> float:
    return 0.0 if 0.0 in (x, y) else x * y


def _times(x: Interval, y: Interval) -> Interval:
    products = [_product(a, b) for a in x for b in y]
    return min(products), max(products)


def _inverse(x: Interval) -> Interval:
    low, high = x
    if low < 0 < high or low == high == 0:
        return _ANY
    ends = [1 / each if each else math.copysign(math.inf, low + high) for each in x]
    return min(ends), max(ends)


def _power(x: Interval, exponents: Interval) -> Interval:
    """For a known exponent of at least 0."""
    (low, high), (exponent, other) = x, exponents
    if exponent != other or exponent < 0 or (low < 0 and exponent % 1):
        return _ANY
    if exponent % 2 == 0:
        low, high = (0.0 if low < 0 < high else min(abs(low), abs(high))), max(abs(low), abs(high))
    ends = torch.tensor([low, high], dtype=torch.double) ** exponent
    return float(ends[0]), float(ends[1])


def _root(x: Interval) -> Interval:
    return math.sqrt(max(x[0], 0.0)), math.sqrt(max(x[1], 0.0))


def _exponential(x: Interval) -> Interval:
    ends = torch.tensor(x, dtype=torch.double).exp()
    return float(ends[0]), float(ends[1])


def _cut(x: Interval, low: Interval = _ANY, high: Interval = _ANY) -> Interval:
    least = low[0] if math.isfinite(low[0]) else -math.inf
    most = high[1] if math.isfinite(high[1]) else math.inf
    return min(max(x[0], least), most), max(min(x[1], most), least)


_CUTTING = (
    *(_aten.clamp, _aten.clip, _aten.hardtanh, _aten.clamp_min, _aten.clamp_max),
    *(_aten.relu, _aten.relu6, _aten.threshold, _aten.leaky_relu),
)
_ARITHMETIC: dict[Any, Callable[..., Interval]] = {
    _aten.add: lambda x, y: (x[0] + y[0], x[1] + y[1]),
    _aten.sub: lambda x, y: (x[0] - y[1], x[1] - y[0]),
    _aten.rsub: lambda x, y: (y[0] - x[1], y[1] - x[0]),
    _aten.mul: _times,
    _aten.div: lambda x, y: _times(x, _inverse(y)),
    _aten.pow: _power,
    _aten.square: lambda x: _power(x, (2.0, 2.0)),
    _aten.sqrt: _root,
    _aten.neg: lambda x: (-x[1], -x[0]),
    _aten.reciprocal: _inverse,
    _aten.exp: _exponential,
    _aten.mean: lambda x: x,
    _aten.relu: lambda x: _cut(x, (0.0, 0.0)),
    _aten.relu6: lambda x: _cut(x, (0.0, 0.0), (6.0, 6.0)),
    **dict.fromkeys((_aten.clamp, _aten.clip, _aten.hardtanh, _aten.clamp_min), _cut),
    _aten.clamp_max: lambda x, high: _cut(x, _ANY, high),
}
"""Bounds of results, of those of the arguments."""
_ARITY = {
    **dict.fromkeys((_aten.add, _aten.sub, _aten.rsub, _aten.mul, _aten.div, _aten.pow, _aten.clamp_min), 2),
    **dict.fromkeys((_aten.clamp, _aten.clip, _aten.hardtanh), 3),
    _aten.clamp_max: 2,
}
