"""The largest, or the smallest, of what a mask leaves: what is left out gets a number that 8 bits have room for.

Models fill in minus infinity in front of a maximum. A quantization that reaches so far has no steps left for the
values; Arm's passes put -256 in its place, which takes all steps of small values, and is larger than others.
"""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.fx.node import map_arg

from lowerdeck.graph.boolean_numbers import only_number
from lowerdeck.graph.masked_scores import CONVERTING, FULL, HANDING_ON, MASKED, SOFTMAX, packet_of
from lowerdeck.graph.masks import MAY_BE_INFINITE, constants
from lowerdeck.graph.retracing import arguments_of, called, replace_by, replace_other_uses
from lowerdeck.graph.scaled_masks import ALL_ALIKE, STILL_MASKED

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch.export import ExportedProgram
    from torch.fx import Node

    _Extremum = Callable[..., torch.Tensor]

_aten = torch.ops.aten
LARGEST = (_aten.amax, _aten.max, _aten.argmax)
SMALLEST = (_aten.amin, _aten.min, _aten.argmin)
OF_TWO = (_aten.max.other, _aten.min.other)
"""Of the same names, but no reduction."""
_INDICES = (_aten.argmax, _aten.argmin)
_VANISHING = (_aten.sigmoid, _aten.exp)
"""Operators that make 0 of what leaves out."""
_POOLINGS = (_aten.max_pool1d.default, _aten.max_pool2d.default, _aten.max_pool3d.default)
_PADDINGS = (_aten.pad.default, _aten.constant_pad_nd.default)
_COMPARISONS = (
    *(_aten.isinf, _aten.isneginf, _aten.isposinf, _aten.isfinite, _aten.isnan, _aten.nan_to_num),
    *(_aten.eq, _aten.ne, _aten.lt, _aten.le, _aten.gt, _aten.ge),
)
"""By which models find what a mask leaves nothing of."""
_BOUNDED = (
    *(_aten.sigmoid, _aten.tanh, _aten.exp, _aten.clamp, _aten.clamp_min, _aten.clamp_max, _aten.relu, _aten.relu6),
    *(_aten.hardtanh, _aten.hardsigmoid, _aten.elu, _aten.softplus, _aten.leaky_relu),
)
"""Functions that make usual numbers of infinite ones, or of those on one side."""
_WEIGHING = (*SOFTMAX, _aten.logsumexp.default)
"""Functions in which what is left out has no weight."""
_ARITHMETIC = (_aten.add, _aten.sub, _aten.rsub, _aten.mul, _aten.div, _aten.neg)
_JOINING = (_aten.cat, _aten.stack)
_LARGER, _SMALLER = (_aten.maximum.default, _aten.max.other), (_aten.minimum.default, _aten.min.other)
_COMBINING = (
    *(_aten.add, _aten.sub, _aten.mul, _aten.neg, _aten.where, _aten.masked_fill, _aten.maximum, _aten.minimum),
    *(_aten.cat, *LARGEST, *SMALLEST),
)
"""Operators whose results are infinite where an operand is."""
_GAP, _LEAST_GAP = 1 / 8, 1e-3
"""Beyond what is left, where indices are read: relative to its range, and for values that are all zero.

Of 256 steps, an eighth costs the values 28. Any more would cost more, a fixed number alone small values all of them.
"""


class _Filled(NamedTuple):
    """Positions among the arguments of an operator that fills in a number."""

    values: int
    mask: int
    number: int


class _Reached(NamedTuple):
    """What is computed of a number that is filled in.

    Attributes:
        source: The operand that has the number.
        number: What it becomes, with usual numbers for what it is added to.
        has_order: Whether results differ by what the number was added to.
    """

    source: Node
    number: Any
    has_order: bool = False


class _Left(NamedTuple):
    """What says where a mask left something, by what it left it of; and where that comes from."""

    known: dict[Node, Node]
    reached: Mapping[Node, _Reached]


_FILLED: dict[Any, _Filled] = {
    _aten.masked_fill.Scalar: _Filled(values=0, mask=1, number=2),
    _aten.where.ScalarOther: _Filled(mask=0, values=1, number=2),
    _aten.where.ScalarSelf: _Filled(mask=0, number=1, values=2),
}


def fill_with_extrema(program: ExportedProgram) -> None:
    """Leave out by the smallest of what is left, or 0, in front of a maximum; by the largest in front of a minimum.

    Where indices are read, by a number beyond: of equal values the first wins. Where a mask leaves nothing, the result
    is that number in place of an infinite one, but comparisons, functions with bounds, softmax, and the larger of this
    and something else have the answer of the infinite one, also behind sums and multiples. `rename_outputs` comes next.
    """
    empty: dict[Any, tuple[Node, float]] = {}
    for node in list(program.graph.nodes):
        if node.target in _PADDINGS:
            _pad_by_edges(node)
        if node.target in _FILLED and _vanishes(node):
            _fill_zeros_behind(node)
        else:
            _fill_with_extremum(program, node, empty)
    for node in list(program.graph.nodes) if empty else ():
        if packet_of(node) in _JOINING and not empty.keys().isdisjoint(node.all_input_nodes):
            _fill_with_extremum(program, _joined(node, empty), empty)
    values = constants(program, may_be_trained=True) if empty else {}
    for node in list(program.graph.nodes):
        if node.target in (*_LARGER, *_SMALLER):
            _choose_other(node, empty, values)


def _fill_with_extremum(program: ExportedProgram, node: Node, empty: dict[Any, tuple[Node, float]]) -> None:
    if node.target in _FILLED and (extrema := _replacing(node, node.args[_FILLED[node.target].number])):
        dtype = node.meta["val"].dtype
        _answer_comparisons(program, node, empty)
        replace_by(node, _filled_with(extrema, _FILLED[node.target], _reads_indices(node), dtype))


def _joined(node: Node, empty: Mapping[Any, tuple[Node, float]]) -> Node:
    """`node`, which concatenates, with a number filled in where its operands have none because nothing is left.

    It stays if not only extrema read it.
    """
    operands: Any = node.args[0]
    numbers = {empty[each][1] for each in operands if each in empty}
    readers = {packet_of(user) for user in node.users}
    if len(numbers) != 1 or not readers or not (readers <= {*LARGEST} or readers <= {*SMALLEST}):
        return node
    with node.graph.inserting_before(node):
        nothing = [
            called(node, _aten.expand_as.default, called(node, _aten.logical_not.default, empty[each][0]), each)
            if each in empty
            else called(node, _aten.zeros_like.default, each, dtype=torch.bool)
            for each in operands
        ]
        places = called(node, node.target, nothing, *node.args[1:], **node.kwargs)
    with node.graph.inserting_before(node.next):
        made = called(node, _aten.masked_fill.Scalar, node, places, numbers.pop())
    replace_other_uses(node, made)
    return made


def _replacing(node: Node, number: Any) -> tuple[_Extremum, _Extremum] | None:
    """What finds the number that replaces `number`, and the opposite; None where anything but extrema reads the result.

    Integers stay: they are not quantized, and have no room beyond them for certain.
    """
    readers = {packet_of(user) for user in node.users}
    if not node.meta["val"].is_floating_point() or any(user.target in OF_TWO for user in node.users):
        return None
    if number <= MASKED and readers and readers.issubset(LARGEST):
        return torch.amin, torch.amax
    if number >= -MASKED and readers and readers.issubset(SMALLEST):
        return torch.amax, torch.amin
    return None


def _vanishes(node: Node) -> bool:
    """Whether nothing reads what is left out but functions that have 0 of it."""
    readers, number = {packet_of(user) for user in node.users}, _number(node)
    return node.meta["val"].is_floating_point() and number <= MASKED and bool(readers) and readers.issubset(_VANISHING)


def _number(node: Node) -> Any:
    return node.args[_FILLED[node.target].number]


def _fill_zeros_behind(node: Node) -> None:
    """Fill in 0 behind a sigmoid or an exponential function."""
    places = _FILLED[node.target]
    for user in list(node.users):
        given = list(node.args)
        given[places.number], given[places.values] = 0.0, user
        with node.graph.inserting_before(user.next):
            made = called(user, node.target, *given)
        replace_other_uses(user, made)
    values: Any = node.args[places.values]
    is_alike = (values.meta["val"].shape, values.meta["val"].dtype) == (node.meta["val"].shape, node.meta["val"].dtype)
    if is_alike and all(packet_of(user) is _aten.sigmoid for user in node.users):
        node.replace_all_uses_with(values)  # a sigmoid of what is left out has no say in the range
        node.graph.erase_node(node)
    else:
        replace_by(node, _filled_with((torch.amin, torch.amax), places, False, node.meta["val"].dtype))


def _pad_by_edges(node: Node) -> None:
    """Let a padding that leaves out, in front of poolings, repeat the edges: windows that reach it have them."""
    options = arguments_of(node)
    padding, value = options["pad"], options.get("value")
    if options.get("mode", "constant") != "constant" or value is None or value > MASKED or not node.users:
        return
    readers = [each for user in node.users for each in (user.users if packet_of(user) is _aten.clone else [user])]
    if all(reader.target in _POOLINGS and _has_edges(reader, padding) for reader in readers):
        replace_by(node, _repeating_edges)


def _has_edges(pooling: Node, padding: list[int]) -> bool:
    """Whether each window of `pooling` has some of the values that were padded, and with the padding their edge."""
    options = arguments_of(pooling)
    given: Any = options.pop("self")
    function: Any = pooling.target
    sizes = given.meta["val"].shape[-len(options["kernel_size"]) :]
    is_known = all(isinstance(size, int) for size in (*sizes, *padding)) and min(padding) >= 0
    if not is_known or len(padding) > 2 * len(sizes) or set(options["dilation"]) - {1}:
        return False
    behind = [*padding, *[0] * (2 * len(sizes) - len(padding))]
    inner = [size - sum(behind[2 * index : 2 * index + 2]) for index, size in enumerate(reversed(sizes))]
    real = torch.nn.functional.pad(torch.zeros(1, 1, *reversed(inner)), behind, value=-torch.inf)
    return bool(function(real, *options.values()).isfinite().all())


def _repeating_edges(x: torch.Tensor, pad: list[int], *_: Any) -> torch.Tensor:
    for index, (front, behind) in enumerate(zip(pad[::2], pad[1::2], strict=True)):
        dim = x.ndim - 1 - index
        first, last = x.narrow(dim, 0, 1), x.narrow(dim, x.shape[dim] - 1, 1)
        if front or behind:
            x = torch.cat([*[first] * front, x, *[last] * behind], dim)
    return x


def _reads_indices(node: Node) -> bool:
    """Whether anything reads where the extrema are: the second of two results, or the only one."""
    second = [each for user in node.users for each in user.users if each.target is operator.getitem and each.args[1]]
    return any(packet_of(user) in _INDICES for user in node.users) or any(each.users for each in second)


def _answer_comparisons(program: ExportedProgram, filled: Node, empty: dict[Any, tuple[Node, float]]) -> None:
    """Let those of extrema of `filled` find that nothing is left by the mask in place of the number.

    Args:
        program: An ATen program.
        filled: What fills the number in.
        empty: Gets what the larger or smaller of it and something else is taken of: what says where something is left,
            and the number.
    """
    values = constants(program, may_be_trained=True)
    reached = {filled: _Reached(filled, _number(filled))}
    comparisons = _comparisons(filled, reached, values)
    if not comparisons:
        return
    places = _FILLED[filled.target]
    with filled.graph.inserting_before(filled):
        mask: Any = filled.args[places.mask]
        is_left = places.values == places.mask + 1
        some = mask if is_left else called(filled, _aten.logical_not.default, mask)
    left = _Left({filled: some}, reached)
    for comparison, compared in comparisons:
        number = reached[compared].number
        if comparison.target in (*_LARGER, *_SMALLER) or packet_of(comparison) in _JOINING:
            empty[compared] = _left(compared, left), number
            continue
        if comparison.target in _WEIGHING:
            _leave_out(comparison, compared, left)
            continue
        others = {each: _stands_for(each, values) for each in comparison.all_input_nodes if each is not compared}
        if None in others.values():
            _compare_number(comparison, compared, number, left)
        else:
            _answer_by_mask(comparison, compared, {**others, compared: number}, left)


def _comparisons(
    filled: Node, reached: dict[Node, _Reached], values: Mapping[Node, Callable[[], Any]]
) -> list[tuple[Node, Node]]:
    """Those of extrema of `filled`, or of what is computed of these with usual numbers, each with what it compares.

    Also what else has an answer to an infinite number.

    Args:
        filled: What fills the number in.
        reached: Has `filled`; gets all between it and what is returned.
        values: The constants of the program.
    """
    extrema = {packet_of(user) for user in filled.users}.difference(_INDICES)
    found, waiting = [], [filled]
    while waiting:
        node = waiting.pop()
        for user in node.users:
            packet = packet_of(user)
            is_value = user.target is operator.getitem and user.args[1] == 0
            is_extremum = packet in extrema and user.target not in OF_TWO
            is_bounded = packet in _BOUNDED and len(user.all_input_nodes) == 1
            is_combined = user.target in (*_LARGER, *_SMALLER) or (packet in _JOINING and node is not filled)
            if packet in _COMPARISONS or is_bounded or is_combined or user.target in _WEIGHING:
                found.append((user, node))
            elif node in user.args[:1] and (is_value or is_extremum or packet in HANDING_ON):
                reached[user] = reached[node]._replace(source=node)
                waiting.append(user)
            elif user not in reached and (result := _computed_of(user, node, reached[node], values)):
                reached[user] = result
                waiting.append(user)
    return found


def _computed_of(
    node: Node, operand: Node, given: _Reached, values: Mapping[Node, Callable[[], Any]]
) -> _Reached | None:
    """What `node` makes of the number that `operand` has where nothing is left; None where that is not known.

    Args:
        node: Any call.
        operand: One of what it reads.
        given: What `operand` is.
        values: The constants of the program.
    """
    packet, others = packet_of(node), [each for each in node.all_input_nodes if each is not operand]
    if packet not in _ARITHMETIC or node.all_input_nodes.count(operand) != 1:
        return None
    if packet in (_aten.mul, _aten.div):
        known = {each: only_number(each, values) for each in others}
    else:
        known = {each: _stands_for(each, values) for each in others}
    if None in known.values():
        return None
    number = _answer(node, {**known, operand: given.number}, operand.meta["val"].dtype)
    if math.isnan(number):
        return None
    is_moved = any(only_number(each, values) is None for each in others)
    return _Reached(operand, number, given.has_order or (is_moved and abs(number) < -ALL_ALIKE))


def _stands_for(node: Node, values: Mapping[Node, Callable[[], Any]]) -> float | None:
    """A number that compares with infinite ones as all elements of `node` do; None where none is known to.

    Args:
        node: What an extremum is compared with.
        values: The constants of the program.
    """
    if node in values:
        return _uniform(values[node]())
    packet = packet_of(node)
    if packet in HANDING_ON or packet in FULL:
        source: Any = node.args[FULL.get(packet, 0)]
        return _stands_for(source, values) if isinstance(source, torch.fx.Node) else float(source)
    return None if _may_be_infinite(node, values) else 0.0


def _may_be_infinite(node: Node, values: Mapping[Node, Callable[[], Any]]) -> bool:
    """Whether elements of `node` may be infinite, or as large as numbers that leave out.

    What layers compute is taken for usual numbers: an infinite one in the program would leave no steps for these.
    """
    waiting, seen = [node], set[torch.fx.Node]()
    while waiting:
        node = waiting.pop()
        packet, value = packet_of(node), node.meta["val"]
        if node in seen or (isinstance(value, torch.Tensor) and not value.is_floating_point()):
            continue
        seen.add(node)
        numbers = [each for each in node.args if isinstance(each, (int, float))]
        is_combined = packet in _COMBINING or packet in FULL
        if node in values and isinstance(value, torch.Tensor):
            is_infinite = _uniform(values[node]()) != 0
        else:
            is_infinite = node.op == "placeholder" or (packet in MAY_BE_INFINITE and not numbers)
            is_infinite |= is_combined and any(abs(each) >= -MASKED for each in numbers)
            if is_combined or packet in HANDING_ON or node.target is operator.getitem:
                waiting += node.all_input_nodes
        if is_infinite:
            return True
    return False


def _uniform(value: torch.Tensor) -> float | None:
    numbers = value.double().flatten()
    if bool((numbers.abs() < -MASKED).all()):
        return 0.0
    return numbers[0].item() if bool((numbers == numbers[0]).all()) else None


def _leave_out(weighing: Node, compared: Node, left: _Left) -> None:
    """Let `weighing`, such as softmax, give `compared` no weight where nothing is left, as it does for the number."""
    _, number, has_order = left.reached[compared]
    if number > STILL_MASKED:
        return
    if not has_order:
        _compare_number(weighing, compared, min(number, MASKED), left)
        return
    some = _left(compared, left)
    with weighing.graph.inserting_before(weighing):
        nothing = called(weighing, _aten.logical_not.default, some)
        numbers = called(weighing, _aten.to.dtype, nothing, compared.meta["val"].dtype)
        mask = called(weighing, _aten.mul.Tensor, numbers, MASKED)
        added = called(weighing, _aten.add.Tensor, compared, mask)
    weighing.replace_input_with(compared, added)


def _compare_number(comparison: Node, compared: Node, number: Any, left: _Left) -> None:
    """Let `comparison` read `number` in place of `compared` where nothing is left; see `_answer_by_mask`."""
    some = _left(compared, left)
    with comparison.graph.inserting_before(comparison):
        infinite = called(comparison, _aten.where.ScalarOther, some, compared, number)
    comparison.replace_input_with(compared, infinite)


def _answer(node: Node, numbers: Mapping[Node, Any], dtype: torch.dtype) -> Any:
    """What `node` returns for numbers in place of the tensors that it reads."""

    def value(each: Node) -> Any:
        usual = torch.tensor(numbers[each], dtype=dtype)
        return usual if isinstance(each.meta["val"], torch.Tensor) else 0

    arguments, options = map_arg((node.args, node.kwargs), value)
    return node.target(*arguments, **options).item()  # type: ignore[operator]


def _answer_by_mask(comparison: Node, compared: Node, numbers: Mapping[Node, Any], left: _Left) -> None:
    """Where nothing is left, give `comparison` the answer that it has for a number.

    Args:
        comparison: Of what is compared, by itself or with something else.
        compared: An extremum, or what is computed of one.
        numbers: What stands for `compared` where nothing is left, and for what it is compared with.
        left: What says where the mask left something of others; gets that of what is compared.
    """
    answer = _answer(comparison, numbers, compared.meta["val"].dtype)
    if not abs(answer) < -MASKED:
        return  # 8 bits have no room for it, or it is NaN
    some = _left(compared, left)
    with comparison.graph.inserting_before(comparison.next):
        nothing = called(comparison, _aten.logical_not.default, some)
        if answer is True:
            made = called(comparison, _aten.logical_or.default, comparison, nothing)
        elif answer is False:
            made = called(comparison, _aten.logical_and.default, comparison, some)
        else:
            made = called(comparison, _aten.masked_fill.Scalar, comparison, nothing, answer)
    replace_other_uses(comparison, made)


def _choose_other(chosen: Node, empty: dict[Any, tuple[Node, float]], values: Mapping[Node, Callable[[], Any]]) -> None:
    """Let the larger, or smaller, of an extremum and something else be the other one where nothing is left.

    Args:
        chosen: Calls maximum or minimum.
        empty: What says where something is left of operands, and the number in its place; gets that of the result.
        values: The constants of the program.
    """
    sign, graph = (-1 if chosen.target in _LARGER else 1), chosen.graph
    operands: list[Any] = list(chosen.args)
    some = {each: empty[each][0] for each in operands if each in empty and empty[each][1] * sign >= -MASKED}
    result = chosen
    for each, other in (operands, operands[::-1]):
        if each not in some:
            continue
        number = _uniform(values[other]()) if other in values else None
        if number is not None and number * sign >= -MASKED:
            if each.meta["val"].shape == chosen.meta["val"].shape:  # as where a model starts with minus infinity
                chosen.replace_all_uses_with(each)
            return
        with graph.inserting_before(result.next):
            made = called(chosen, _aten.where.self, some[each], result, other)
        replace_other_uses(result, made)
        result = made
    if len(some) == 2:
        with graph.inserting_before(chosen):
            either = called(chosen, _aten.logical_or.default, *some.values())
        empty[result] = either, empty[operands[0]][1]


def _left(node: Node, left: _Left) -> Node:
    """What says where the mask left something of `node`: it moves as the values do."""
    if node in left.known:
        return left.known[node]
    source = left.reached[node].source
    some, packet = _left(source, left), packet_of(node)
    is_moved = packet in HANDING_ON and packet not in CONVERTING
    is_reduced = packet in (*LARGEST, *SMALLEST)
    with node.graph.inserting_before(node.next):
        if (is_moved or is_reduced) and some.meta["val"].shape != source.meta["val"].shape:
            some = called(node, _aten.expand_as.default, some, source)
        if is_moved:
            some = called(node, node.target, some, *node.args[1:], **node.kwargs)
        elif is_reduced:
            options = arguments_of(node)
            dim = options.get("dim")
            dims = [dim] if isinstance(dim, int) else dim or None
            some = called(node, _aten.any.dims, some, dims, options.get("keepdim", False))
    left.known[node] = some
    return some


def _filled_with(
    extrema: tuple[_Extremum, _Extremum], places: _Filled, reads_indices: bool, dtype: torch.dtype
) -> Callable[..., torch.Tensor]:
    def filled(*arguments: Any) -> torch.Tensor:
        values, mask = arguments[places.values], arguments[places.mask]
        values = values if values.dtype == dtype else values.to(dtype)  # integers beside an infinite number
        is_mask_of_values = places.values == places.mask + 1
        # What is left out may be NaN or infinite; 0 is in every range of 8 bits.
        left = torch.where(mask, values, 0.0) if is_mask_of_values else values.masked_fill(mask, 0.0)
        other, farthest = (each(left, dim=list(range(left.ndim)), keepdim=True) for each in extrema)
        if reads_indices:
            other = other + (other - farthest) * _GAP + math.copysign(_LEAST_GAP, arguments[places.number])
        return torch.where(mask, values, other) if is_mask_of_values else torch.where(mask, other, values)

    return filled
