"""Nodes that have the number of a mask, such as -1e9, beside scores whose differences count.

A softmax needs to know of a masked score that it is less than the others. Its logarithm, an order, and who gets scores
as an output, need to know how much the others are: no 8 bits have -1e9 and steps for the scores that are kept.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch.utils._pytree import tree_leaves

from lowerdeck.graph.masked_scores import CHOOSING, CONVERTING, FULL, HANDING_ON, MASKED, packet_of, stored_tensors
from lowerdeck.graph.masks import computed
from lowerdeck.graph.retracing import arguments_of

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import GraphModule, Node

    _Known = Mapping[Node, Callable[[], Any]]

_aten = torch.ops.aten
_LOGARITHMS = (_aten.log_softmax, _aten._log_softmax, _aten.logsumexp, _aten.cross_entropy_loss)
_ORDERING = (
    *(_aten.topk, _aten.sort, _aten.argsort, _aten.msort, _aten.kthvalue),
    *(_aten.max, _aten.amax, _aten.argmax, _aten.min, _aten.amin, _aten.argmin),
)
_SOFTMAX = (_aten.softmax, _aten._softmax)
_FILLING: dict[Any, tuple[int, ...]] = {
    **CHOOSING,
    **dict.fromkeys((_aten.select_scatter, _aten.slice_scatter, _aten.diagonal_scatter, _aten.copy), (1,)),
    **dict.fromkeys((_aten.index_put, _aten.masked_scatter, _aten.constant_pad_nd), (2,)),
    **dict.fromkeys((_aten.index_fill, _aten.index_copy, _aten.scatter, _aten.scatter_reduce, _aten.pad), (3,)),
    **dict.fromkeys((_aten.cat, _aten.stack), (0,)),
    _aten.maximum: (0, 1),
}
"""Where operators have what some elements of their results are."""
_ADDING = (_aten.add, _aten.sub, _aten.rsub)
_MULTIPLYING = (_aten.mul, _aten.div)
_ARITHMETIC = (*_ADDING, _aten.mul, _aten.neg)
_LIMITING = (_aten.clamp, _aten.clip, _aten.minimum)
_MOVING = (
    *(_aten.cat, _aten.stack, _aten.tril, _aten.triu, _aten.index_select, _aten.gather, _aten.flip, _aten.roll),
    *(_aten.repeat_interleave, _aten.unfold, _aten.diagonal, _aten.diag_embed, _aten.amax, _aten.amin),
    *(_aten.split, _aten.split_with_sizes, _aten.chunk, _aten.unbind),
)
"""Operators whose results are elements of their first argument, or of the tensors in it, and 0."""
_BOUNDED = (
    *(_aten.exp, _aten.softmax, _aten._softmax, _aten.sigmoid, _aten.tanh, _aten.logsumexp),
    *(_aten.argmax, _aten.argmin, _aten.argsort, _aten.isinf, _aten.isfinite),
    *(_aten.gt, _aten.ge, _aten.lt, _aten.le, _aten.eq, _aten.ne),
    *(_aten.layer_norm, _aten.group_norm, _aten.instance_norm, _aten.rms_norm),
)
"""Operators whose results have no number of a mask, whatever they read."""
_BOUNDED_BELOW = (_aten.relu, _aten.relu6, _aten.elu, _aten.gelu, _aten.silu, _aten.hardswish, _aten.softplus)
_BOUNDED_ABOVE = (_aten.log_softmax, _aten._log_softmax, _aten.log_sigmoid)
_LOWER = {_aten.clamp: 1, _aten.clamp_min: 1, _aten.hardtanh: 1, _aten.maximum: 1, _aten.nan_to_num: 3}
_UPPER = {_aten.clamp: 2, _aten.clamp_max: 1, _aten.hardtanh: 2, _aten.minimum: 1}
"""Where operators have the least and the largest number of their results; of nan_to_num, in place of infinite ones."""
_LAYERS = (
    *(_aten.linear, _aten.matmul, _aten.mm, _aten.bmm, _aten.addmm, _aten.conv1d, _aten.conv2d, _aten.conv3d),
    *(_aten.conv_transpose1d, _aten.conv_transpose2d, _aten.conv_transpose3d),
)
_Number = tuple[float, float]
"""One that a mask leaves, and by which share of it elements may be off."""
_EXACT, _ADDED = 1e-6, 0.01
"""By which share of a mask's number elements are off it: by rounding in float32, and by scores that it is added to."""
_MOST_NUMBERS = 64
"""A tensor with more of them is no mask."""
_MOST_STEPS = 8
"""Arithmetic on booleans beyond it may have any number from 0 to 1."""


class _Read(NamedTuple):
    """A tensor on the way to what needs the differences of scores.

    Attributes:
        node: Computes it; or a number.
        sign: -1 if it is subtracted on the way, else 1.
        is_returned: Whether an output of the program needs them.
    """

    node: Any
    sign: int
    is_returned: bool


def masked_values(program: GraphModule | ExportedProgram) -> list[Node]:
    """The nodes from a mask to what needs the differences of scores, and those that read a number of the mask.

    A layer that reads such a number is the last of them. The first are what masks are made of, inputs included:
    1 - 0.9995 is no 0 where it is multiplied by -1e9.

    Args:
        program: An ATen program, or a module of one.
    """
    known = _constants(program)
    wanted = [*_wanted(program.graph), *_returned(program.graph)]
    found = dict[torch.fx.Node, None]()
    while True:
        masks = _masks(known, program.graph, wanted)
        found |= dict.fromkeys([*_reading(known, program.graph, masks), *_parts(known, masks)])
        weights = [each for node in found for each in _weights(node) if each not in found]
        if not weights:
            return [node for node in program.graph.nodes if node in found]
        found |= dict.fromkeys(weights)
        wanted += [_Read(each.args[0], 1, False) for each in weights if packet_of(each) in _SOFTMAX]


def masked_outputs(program: ExportedProgram) -> list[tuple[tuple[float, float], ...]]:
    """The numbers that masks leave in the outputs of an ATen program, and by which share elements may be off them.

    What is filled in is there exactly; to what is added, scores are added.
    """
    known, found = _constants(program), dict[Any, set[_Number]]()
    for read in _returned(program.graph):
        numbers = _numbers(known, program.graph, _masks(known, program.graph, [read]))
        found.setdefault(read.node.name, set()).update(numbers.get(read.node, ()))
    return [tuple(sorted(found.get(name, ()))) for name in program.graph_signature.user_outputs]


def _constants(program: GraphModule | ExportedProgram) -> _Known:
    """What no input and no state changes, also where the program computes it, with what returns it."""
    stored = stored_tensors(program)
    if not isinstance(program, torch.fx.GraphModule):
        signature = program.graph_signature
        buffers, state = signature.inputs_to_buffers, signature.buffers_to_mutate.values()
        stored = {node: value for node, value in stored.items() if buffers.get(node.name) not in state}
    return computed(program.graph, {node: partial(_itself, value) for node, value in stored.items()})


def _itself(value: Any) -> Any:
    return value


def _parts(known: _Known, masks: Iterable[Node]) -> list[Node]:
    """What masks are made of: arithmetic on booleans, the inputs that count as such, and what no input changes."""
    found = dict[torch.fx.Node, None]()
    waiting = [each for node in masks for each in node.all_input_nodes if each in known]
    for node in masks:
        if packet_of(node) in (_aten.mul, _aten.log):
            waiting += [each for each in node.all_input_nodes if _is_of_booleans(known, each, is_given=True)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, torch.fx.Node) and node not in found and _dtypes(node):
            found[node] = None
            waiting += node.all_input_nodes if node in known else tree_leaves(_operands(node))
    return [node for node in found if node.op == "call_function" or (node.op == "placeholder" and node not in known)]


def _wanted(graph: torch.fx.Graph) -> list[_Read]:
    """What logarithms and orders read."""
    found = list[_Read]()
    for node in graph.nodes:
        if packet_of(node) in _LOGARITHMS:
            found.append(_Read(node.args[0], 1, False))
        elif packet_of(node) in _ORDERING and len(node.all_input_nodes) == 1 and not _is_of_softmax(node):
            # One tensor, and not the larger of two.
            found.extend(_of(_Read(node.args[0], 1, False)))
    return found


def _is_of_softmax(largest: Node) -> bool:
    """Whether a node is the largest score of a softmax in parts, exp(x - amax(x)), as Arm's quantizer writes it.

    Only differences from the largest count behind it: what is masked is 0 there, as in the softmax itself.
    """
    readers = [*_readers(largest)]
    return packet_of(largest) is _aten.amax and all(
        packet_of(each) is _aten.sub
        and each.args[0] is largest.args[0]
        and all(packet_of(user) is _aten.exp for user in _readers(each))
        for each in readers
    )


def _returned(graph: torch.fx.Graph) -> list[_Read]:
    """The outputs in floats."""
    return [
        each for node in graph.output_node().all_input_nodes if _is_float(node) for each in _of(_Read(node, 1, True))
    ]


def _of(read: _Read) -> list[_Read]:
    """`read` for masks of either sign."""
    return [read, read._replace(sign=-1)]


def _weights(node: Node) -> Iterator[Node]:
    """The softmax that a node reads, with what hands it on.

    What it leaves out weighs nothing: a rounded weight of as little as 1 / 2560 would count -1e9.
    """
    for source in node.all_input_nodes:
        if packet_of(source) in _SOFTMAX:
            yield source
        elif packet_of(source) in HANDING_ON and (above := [*_weights(source)]):
            yield from (*above, source)


def _reading(known: _Known, graph: torch.fx.Graph, masks: dict[Node, set[int]]) -> list[Node]:
    """Masks, and the nodes that read a number of them, up to a layer.

    Args:
        known: What no input changes.
        graph: Its graph.
        masks: The signs of their numbers: 1, -1, or both.
    """
    carrying, found = dict(masks), list(masks)
    for node in graph.nodes:
        sources = [each for each in node.all_input_nodes if each in carrying]
        if node.op != "call_function" or not sources:
            continue
        found.append(node)
        if packet_of(node) in _LAYERS or _is_index(node):
            continue
        signs = {sign * _direction(known, node, each) for each in sources for sign in carrying[each]}
        signs = {sign for sign in signs if not _is_bounded(known, node, sign)}
        if signs or node in carrying:
            carrying[node] = carrying.get(node, set()) | signs
    return found


def _masks(known: _Known, graph: torch.fx.Graph, wanted: Sequence[_Read]) -> dict[Node, set[int]]:
    """The calls that make masks of what is wanted, in order, with the signs of their numbers: 1, -1, or both."""
    found: dict[Node, set[int]] = {}
    waiting, seen = list(wanted), set[_Read]()
    while waiting:
        read = waiting.pop()
        node, sign, _ = read
        if read in seen or _ends(known, node, sign):
            continue
        seen.add(read)
        if (signs := _leaves_out(known, read)) and not (read.is_returned and _is_quantity(known, read)):
            found[node] = found.get(node, set()) | signs
        is_arithmetic = packet_of(node) in (*_ARITHMETIC, *_MULTIPLYING)
        operands = (each for each in node.all_input_nodes if not is_arithmetic or _value(known, each) is None)
        waiting.extend(read._replace(node=each, sign=sign * _direction(known, node, each)) for each in operands)
    return {node: found[node] for node in graph.nodes if node in found}


def _is_quantity(known: _Known, read: _Read) -> bool:
    """Whether the large numbers that a node makes of an output are physical quantities, such as 101325 Pa.

    Masks are subtracted, and products of them are of what no layer reads. What is filled in may have either sign.
    """
    node, sign, _ = read
    packet = packet_of(node)
    if packet in _ADDING:
        return sign < 0
    if packet is _aten.mul:
        parts = (direction * number for direction in _terms(known, node) for number in _products(known, node))
        is_added = any(part <= MASKED for part in parts)
        return not is_added or any(_is_read_by_layer(each) for each in _given(known, node))
    filled = [value for each in _filled(node) if (value := _value(known, each)) is not None]
    return packet in _FILLING and sign < 0 and not any(bool((value >= -MASKED).all()) for value in filled)


def _terms(known: _Known, node: Node) -> Iterator[int]:
    """The directions in which results of a node are added to other tensors that are computed."""
    for user in node.users:
        packet, direction = packet_of(user), _direction(known, user, node)
        if packet in _ADDING and sum(_value(known, each) is None for each in user.all_input_nodes) > 1:
            yield direction
        elif packet in (*HANDING_ON, *_MULTIPLYING, *_LOWER, *_UPPER, _aten.neg):
            yield from (direction * each for each in _terms(known, user))


def _given(known: _Known, node: Any) -> Iterator[Node]:
    """The inputs of the program that arithmetic has in a node, but not by way of booleans."""
    for each in _ingredients(known, node):
        if isinstance(each, torch.fx.Node) and each.op == "placeholder" and each not in known and not _is_boolean(each):
            yield each


def _is_read_by_layer(node: Node) -> bool:
    return any(packet_of(each) in _LAYERS for each in _readers(node))


def _filled(node: Node) -> list[Any]:
    """What some elements of a node's results are."""
    return tree_leaves([node.args[at : at + 1] for at in _FILLING.get(packet_of(node), ())])


def _numbers(known: _Known, graph: torch.fx.Graph, masks: dict[Node, set[int]]) -> dict[Node, set[_Number]]:
    """The nodes that have numbers of masks, up to layers, with these numbers; of several results, those in floats."""
    found: dict[Node, set[_Number]] = {}
    for node in graph.nodes:
        dtypes = _dtypes(node)
        if node.op != "call_function" or packet_of(node) in _LAYERS or not dtypes:
            continue
        dtype = dtypes[0]
        made = _made(known, node, masks.get(node, set())) | _handed_on(known, node, found)
        rounded = {(torch.tensor(number, dtype=torch.float64).to(dtype).item(), share) for number, share in made}
        large = [each for each in rounded if abs(each[0]) >= -MASKED and not _is_bounded(known, node, _sign(each[0]))]
        if large:
            found[node] = set(sorted(large)[:_MOST_NUMBERS])
    return found


def _sign(number: float) -> int:
    return 1 if number > 0 else -1


def _made(known: _Known, node: Node, signs: set[int]) -> set[_Number]:
    """The numbers of a mask that begins at a node; `signs` as of `_masks`."""
    packet = packet_of(node)
    if packet is _aten.log:
        return {(-math.inf, _EXACT)} if signs else set()
    if packet is _aten.mul:
        return {(number, _EXACT) for number in _products(known, node) if _sign(number) in signs}
    sources = _filled(node) if packet in _FILLING else node.all_input_nodes if packet in _ADDING else []
    parts = {_direction(known, node, each) * number for each in sources for number in _unique(known, each)}
    return {(part, _ADDED if packet in _ADDING else _EXACT) for part in parts if _sign(part) in signs}


def _products(known: _Known, node: Node) -> Iterator[float]:
    """The numbers of a product of booleans and what no input changes, but 0."""
    for factor, other in (node.args, node.args[::-1]):
        for number in _unique(known, factor):
            yield from (number * bound for bound in _bounds(known, other) if number * bound)


def _bounds(known: _Known, node: Any, depth: int = 0) -> tuple[float, float]:
    """The least and the largest number of an argument that is made of booleans."""
    value = _value(known, node)
    if value is not None:
        return (float(value.min()), float(value.max())) if value.numel() else (0.0, 0.0)
    packet = packet_of(node)
    if packet not in (*_ARITHMETIC, *HANDING_ON) or depth == _MOST_STEPS:
        return 0.0, 1.0
    operands = node.args[:1] if packet in (*HANDING_ON, _aten.neg) else node.args[:2]
    bounds = [_bounds(known, each, depth + 1) for each in operands]
    if packet is _aten.mul:
        found = [one * other for one, other in itertools.product(*bounds)]
        return min(found), max(found)
    low, high = 0.0, 0.0
    for operand, (least, most) in zip(operands, bounds, strict=True):
        ends = (least, most) if _direction(known, node, operand) > 0 else (-most, -least)
        low, high = low + ends[0], high + ends[1]
    return low, high


def _unique(known: _Known, node: Any) -> list[float]:
    """The numbers of an argument, if these are few."""
    value = _value(known, node)
    found: list[float] = [] if value is None else value.unique().tolist()  # type: ignore[no-untyped-call]
    return found if len(found) <= _MOST_NUMBERS else []


def _handed_on(known: _Known, node: Node, found: Mapping[Node, set[_Number]]) -> set[_Number]:
    """What becomes of the numbers of masks that a node reads."""
    packet = packet_of(node)
    sources = [each for each in node.all_input_nodes if each in found]
    if packet in _MULTIPLYING:
        return {each for source in sources for each in _multiplied(known, node, source, found[source])}
    parts = [{(_direction(known, node, each) * number, share) for number, share in found[each]} for each in sources]
    alone = {each for part in parts for each in part}
    if packet in _ADDING:
        sums = {(one + other, _ADDED) for one, _ in parts[0] for other, _ in parts[1]} if len(parts) > 1 else set()
        return sums | {(number, _ADDED) for number, _ in alone}
    if packet in (*_LOWER, *_UPPER) and len(node.all_input_nodes) == 1:  # with limits that are numbers
        dtype, target = node.meta["val"].dtype, cast("Any", node.target)
        return {(target(torch.tensor(each, dtype=dtype), *node.args[1:]).item(), share) for each, share in alone}
    return {(number, _ADDED) for number, _ in alone} if packet in _LOGARITHMS else alone


def _multiplied(known: _Known, node: Node, source: Node, numbers: set[_Number]) -> set[_Number]:
    """Numbers of masks times those that no input changes; of other products, the infinite ones."""
    is_divided = packet_of(node) is _aten.div
    if is_divided and source is not node.args[0]:
        return set()
    others = [each for each in node.args[:2] if each is not source]
    if any(_value(known, each) is None for each in others):
        return {each for each in numbers if math.isinf(each[0])}
    factors = [1 / each if is_divided else each for other in others for each in _unique(known, other) if each]
    return {(number * factor, share) for number, share in numbers for factor in factors}


def _ends(known: _Known, node: Node, sign: int) -> bool:
    """Whether no number that leaves out elements comes through a node; `sign` as in `_Read`."""
    is_call = node.op == "call_function" and packet_of(node) not in _LAYERS
    return not is_call or _is_boolean(node) or _is_index(node) or _is_bounded(known, node, -sign)


def _leaves_out(known: _Known, read: _Read) -> set[int]:
    """The signs of the numbers by which a node leaves out some elements of what is wanted."""
    node, sign, is_returned = read
    packet = packet_of(node)
    if packet is _aten.mul:
        return {1, -1} if _is_multiple_of_booleans(known, node) else set()
    if packet is _aten.log:
        return {-1} if _is_of_booleans(known, node.args[0]) or any(map(_replaces_infinity, _readers(node))) else set()
    if packet in _ADDING:
        operands = ((each, sign * _direction(known, node, each)) for each in node.all_input_nodes)
        values = ((_value(known, each), direction) for each, direction in operands)
        parts = (direction * value for value, direction in values if value is not None)
        return {-sign} if any(_is_mask(each, is_returned) for each in parts) else set()
    values_filled = (_value(known, each) for each in _filled(node))
    return {-sign} if any(each is not None and bool((sign * each <= MASKED).any()) for each in values_filled) else set()


def _is_mask(value: torch.Tensor, is_returned: bool) -> bool:
    """Whether what is added leaves out some elements: what all have in common leaves out none.

    One that is returned is 0 elsewhere: a model of several physical quantities adds the mean of each.
    """
    left_out = value <= MASKED
    is_some = bool(left_out.any()) and not bool(left_out.all())
    return is_some and not (is_returned and bool((value[~left_out] != 0).any()))


def _is_multiple_of_booleans(known: _Known, node: Node) -> bool:
    """Whether a product is 0 and a number that leaves out elements, wherever it is added."""
    for number, other in (node.args, node.args[::-1]):
        value = _value(known, number)
        if value is not None and bool((value.abs() >= -MASKED).any()):
            return _is_of_booleans(known, other, is_given=_is_added(known, node))
    return False


def _is_added(known: _Known, node: Node) -> bool:
    """Whether it is added to, or subtracted from, another tensor that is computed."""
    readers = (each for each in _readers(node) if packet_of(each) in _ADDING)
    return any(sum(_value(known, each) is None for each in reader.all_input_nodes) > 1 for reader in readers)


def _is_of_booleans(known: _Known, node: Any, is_given: bool = False) -> bool:
    """Whether an argument is made of booleans, and numbers up to 1, by arithmetic and by moving elements alone.

    Args:
        known: What no input changes.
        node: A node of the program, or a number.
        is_given: Whether inputs of the program count as booleans.
    """
    for each in _ingredients(known, node):
        value = _value(known, each)
        is_input = isinstance(each, torch.fx.Node) and each.op == "placeholder" and value is None
        is_boolean = each is None or (isinstance(each, torch.fx.Node) and _is_boolean(each))
        if not (is_boolean or (is_given and is_input) or (value is not None and bool((value.abs() <= 1).all()))):
            return False
    return True


def _ingredients(known: _Known, node: Any) -> Iterator[Any]:
    """What an argument is made of by arithmetic and by moving elements: booleans, constants, all else; once each."""
    waiting, seen = [node], set[Any]()
    while waiting:
        if (each := waiting.pop()) in seen:
            continue
        seen.add(each)
        is_made = isinstance(each, torch.fx.Node) and each not in known and not _is_boolean(each)
        operands = tree_leaves(_operands(each)) if is_made else []
        waiting.extend(operands)
        if not operands:
            yield each


def _operands(node: Node) -> Sequence[Any]:
    """What the results of a node consist of, where it moves elements, or has numbers of them by arithmetic."""
    packet = packet_of(node)
    if packet in (*CONVERTING, *HANDING_ON, *_MOVING) or (node.target is operator.getitem and not _is_index(node)):
        return node.args[:1]
    if packet in _FILLING:
        return [*node.args[:1], *_filled(node)]
    if packet in (_aten.max, _aten.min):
        return node.all_input_nodes
    return node.args if packet in (*_ARITHMETIC, *_LIMITING) else ()


def _is_boolean(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dtype == torch.bool


def _is_float(node: Node) -> bool:
    return _is_of_floats(node.meta.get("val"))


def _dtypes(node: Node) -> list[torch.dtype]:
    """Those of a node's results in floats."""
    return [each.dtype for each in tree_leaves(node.meta.get("val")) if _is_of_floats(each)]


def _is_of_floats(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _is_index(node: Node) -> bool:
    """Whether it has the indices of the largest, or of an order."""
    return node.target is operator.getitem and not _is_float(node)


def _readers(node: Node) -> Iterator[Node]:
    """What reads it, views of it and copies."""
    for user in node.users:
        if packet_of(user) in HANDING_ON:
            yield from _readers(user)
        else:
            yield user


def _replaces_infinity(node: Node) -> bool:
    """Whether a node has a number of a mask, or one in a tensor, in place of negative infinity."""
    lower = _argument(node, _LOWER)
    is_default = packet_of(node) is _aten.nan_to_num and lower is None
    return is_default or isinstance(lower, torch.fx.Node) or (lower is not None and lower <= MASKED)


def _direction(known: _Known, node: Node, source: Any) -> int:
    """-1 where the results of a node are less if what it reads of `source` is larger, else 1."""
    packet = packet_of(node)
    if packet is _aten.neg:
        return -1
    if packet in (_aten.sub, _aten.rsub):
        return -1 if source is node.args[packet is _aten.sub] else 1
    if packet in _MULTIPLYING:
        values = (_value(known, each) for each in node.args if each is not source)
        return -1 if any(each is not None and bool((each < 0).all()) for each in values) else 1
    return 1


def _is_bounded(known: _Known, node: Node, sign: int) -> bool:
    """Whether the results of a node have no number of a mask that has this sign."""
    packet = packet_of(node)
    if packet in _BOUNDED or packet in (_BOUNDED_BELOW if sign < 0 else _BOUNDED_ABOVE):
        return True
    positions = {each: at for each, at in (_LOWER if sign < 0 else _UPPER).items() if each is not _aten.nan_to_num}
    limit = _value(known, _argument(node, positions))
    return limit is not None and bool((sign * limit < -MASKED).all())


def _argument(node: Node, positions: dict[Any, int]) -> Any:
    """The argument of a call at the position for its operator; None without one."""
    position = positions.get(packet_of(node))
    return None if position is None else list(arguments_of(node).values())[position]


def _value(known: _Known, node: Any) -> torch.Tensor | None:
    """The numbers of an argument that no input changes, in some shape; None of another one."""
    if not isinstance(node, torch.fx.Node):
        is_number = isinstance(node, (int, float)) and not math.isnan(node)
        return torch.tensor(float(node)) if is_number else None
    if node in known:
        value = known[node]()
        is_tensor = isinstance(value, torch.Tensor) and not value.is_complex()
        return value.detach().to(torch.float32) if is_tensor else None
    packet = packet_of(node)
    if packet in FULL or packet is _aten.scalar_tensor:
        return _value(known, node.args[FULL.get(packet, 0)])
    return _value(known, node.args[0]) if packet in HANDING_ON else None
