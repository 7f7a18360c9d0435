"""Logarithms of a softmax behind a mask, such as those of a policy whose actions are not all allowed, stay in float.

A softmax needs to know of a masked score that it is less than the others, and its logarithm how much: no 8 bits have
-1e9 and steps for the scores that are kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_leaves
from torchao.quantization.pt2e.quantizer import Quantizer

from lowerdeck.graph.masked_scores import CHOOSING, CONVERTING, FULL, HANDING_ON, MASKED, packet_of
from lowerdeck.graph.retracing import arguments_of
from lowerdeck.quantization.annotation import hidden, repair_float_neighbours, show
from lowerdeck.quantization.shared_layers import LAYERS

if TYPE_CHECKING:
    from torch.fx import GraphModule, Node

_aten = torch.ops.aten
_LOGARITHMS = (_aten.log_softmax, _aten._log_softmax, _aten.logsumexp)
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
_BOUNDED = (
    *(_aten.exp, _aten.softmax, _aten._softmax, _aten.sigmoid, _aten.tanh, _aten.logsumexp),
    *(_aten.argmax, _aten.gt, _aten.ge, _aten.lt, _aten.le, _aten.eq, _aten.ne, _aten.isinf, _aten.isfinite),
    *(_aten.layer_norm, _aten.group_norm, _aten.instance_norm, _aten.rms_norm),
)
"""Operators whose results have no number of a mask, whatever they read."""
_BOUNDED_BELOW = (_aten.relu, _aten.relu6, _aten.elu, _aten.gelu, _aten.silu, _aten.hardswish, _aten.softplus)
_LOWER = {_aten.clamp: 1, _aten.clamp_min: 1, _aten.hardtanh: 1, _aten.maximum: 1, _aten.nan_to_num: 3}
_UPPER = {_aten.clamp: 2, _aten.clamp_max: 1, _aten.hardtanh: 2, _aten.minimum: 1}
"""Where operators have the least and the largest number of their results; of nan_to_num, in place of infinite ones."""
_LAYERS = {*(each.overloadpacket for each in LAYERS), _aten.matmul, _aten.mm, _aten.bmm, _aten.addmm}


class KeepingLogarithms(Quantizer):  # type: ignore[misc]  # torchao is untyped
    """A quantizer that leaves masks, logarithms behind them, and what reads their numbers in float."""

    def __init__(self, quantizer: Quantizer) -> None:
        """`quantizer` annotates the rest; it skips annotated nodes."""
        super().__init__()
        self._quantizer = quantizer

    def transform_for_annotation(self, model: GraphModule) -> GraphModule:
        """Run the quantizer's transformation on the rest."""
        nodes = masked_logarithms(model)
        with hidden(nodes):
            transformed: GraphModule = self._quantizer.transform_for_annotation(model)
        show(transformed.graph.nodes)
        return transformed

    def annotate(self, model: GraphModule) -> GraphModule:
        """Annotate the rest."""
        nodes = masked_logarithms(model)
        with hidden(nodes):
            annotated: GraphModule = self._quantizer.annotate(model)
        repair_float_neighbours(annotated.graph, nodes)
        return annotated

    def validate(self, model: GraphModule) -> None:
        """Run the quantizer's check."""
        self._quantizer.validate(model)

    def prepare_obs_or_fq_callback(self, model: GraphModule, edge_or_node_to_obs_or_fq: dict[Any, Any]) -> None:
        """Run the quantizer's final changes to observers."""
        self._quantizer.prepare_obs_or_fq_callback(model, edge_or_node_to_obs_or_fq)


def masked_logarithms(module: GraphModule) -> list[Node]:
    """The nodes from a mask to a logarithm of a softmax, and those that read a number of the mask, up to a layer."""
    carrying, found = _masks(module), list[torch.fx.Node]()
    masks = list(carrying)
    logarithms = {node for node in module.graph.nodes if packet_of(node) in _LOGARITHMS}
    for node in module.graph.nodes:
        sources = [each for each in node.all_input_nodes if each in carrying]
        if node.op != "call_function" or not sources or packet_of(node) in _LAYERS:
            continue
        found.append(node)
        signs = {sign * _direction(module, node, each) for each in sources for sign in carrying[each]}
        signs = {sign for sign in signs if not _is_bounded(module, node, sign)}
        if signs or node in carrying:
            carrying[node] = carrying.get(node, set()) | signs
    return list(dict.fromkeys([*masks, *found])) if not logarithms.isdisjoint(found) else []


def _masks(module: GraphModule) -> dict[Node, set[int]]:
    """The calls that make masks of what logarithms read, in order, with the signs of their numbers: 1, -1, or both."""
    found: dict[Node, set[int]] = {}
    waiting = [(node.args[0], 1) for node in module.graph.nodes if packet_of(node) in _LOGARITHMS]
    seen = set[tuple[torch.fx.Node, int]]()
    while waiting:
        node, sign = waiting.pop()  # a sign of -1 if what is read is subtracted on the way to the logarithm
        if (node, sign) in seen or _ends(module, node, sign):
            continue
        seen.add((node, sign))
        if signs := _leaves_out(module, node, sign):
            found[node] = found.get(node, set()) | signs
        waiting.extend((each, sign * _direction(module, node, each)) for each in node.all_input_nodes)
    return {node: found[node] for node in module.graph.nodes if node in found}


def _ends(module: GraphModule, node: Node, sign: int) -> bool:
    """Whether no number that leaves out elements comes through a node; `sign` as in `_masks`."""
    is_call = node.op == "call_function" and packet_of(node) not in _LAYERS
    return not is_call or _is_boolean(node) or _is_bounded(module, node, -sign)


def _leaves_out(module: GraphModule, node: Node, sign: int) -> set[int]:
    """The signs of the numbers by which a node leaves out some elements of what a logarithm reads."""
    packet = packet_of(node)
    if packet is _aten.mul:
        return {1, -1} if _is_multiple_of_booleans(module, node) else set()
    if packet is _aten.log:
        return {-1} if _is_of_booleans(module, node.args[0]) or any(map(_replaces_infinity, _readers(node))) else set()
    if packet in _ADDING:  # what all elements have in common leaves out none
        operands = ((each, sign * _direction(module, node, each)) for each in node.all_input_nodes)
        values = ((_value(module, each), direction) for each, direction in operands)
        parts = [direction * value <= MASKED for value, direction in values if value is not None]
        return {-sign} if any(bool(each.any()) and not bool(each.all()) for each in parts) else set()
    filled = tree_leaves([node.args[at : at + 1] for at in _FILLING.get(packet, ())])
    values_filled = (_value(module, each) for each in filled)
    return {-sign} if any(each is not None and bool((sign * each <= MASKED).any()) for each in values_filled) else set()


def _is_multiple_of_booleans(module: GraphModule, node: Node) -> bool:
    """Whether a product is 0 and a number that leaves out elements, wherever it is added."""
    for number, other in (node.args, node.args[::-1]):
        value = _value(module, number)
        if value is not None and bool((value.abs() >= -MASKED).any()):
            return _is_of_booleans(module, other, is_given=_is_added(module, node))
    return False


def _is_added(module: GraphModule, node: Node) -> bool:
    """Whether it is added to, or subtracted from, another tensor that is computed."""
    readers = (each for each in _readers(node) if packet_of(each) in _ADDING)
    return any(sum(_value(module, each) is None for each in reader.all_input_nodes) > 1 for reader in readers)


def _is_of_booleans(module: GraphModule, node: Any, is_given: bool = False) -> bool:
    """Whether an argument is made of booleans, and numbers up to 1, by arithmetic alone.

    Args:
        module: An ATen program.
        node: A node of it, or a number.
        is_given: Whether inputs of the program count as booleans.
    """
    value = _value(module, node)
    if value is not None:
        return bool((value.abs() <= 1).all())
    if node.op == "placeholder" or _is_boolean(node):
        return is_given or _is_boolean(node)
    if packet_of(node) in (*CONVERTING, *HANDING_ON):
        return _is_of_booleans(module, node.args[0], is_given)
    operands = node.args[1:] if packet_of(node) is _aten.where else node.args
    is_computed = packet_of(node) in (*_ARITHMETIC, _aten.where)
    return is_computed and all(_is_of_booleans(module, each, is_given) for each in operands)


def _is_boolean(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dtype == torch.bool


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


def _direction(module: GraphModule, node: Node, source: Node) -> int:
    """-1 where the results of a node are less if what it reads of `source` is larger, else 1."""
    packet = packet_of(node)
    if packet is _aten.neg:
        return -1
    if packet in (_aten.sub, _aten.rsub):
        return -1 if source is node.args[packet is _aten.sub] else 1
    if packet in _MULTIPLYING:
        values = (_value(module, each) for each in node.args if each is not source)
        return -1 if any(each is not None and bool((each < 0).all()) for each in values) else 1
    return 1


def _is_bounded(module: GraphModule, node: Node, sign: int) -> bool:
    """Whether the results of a node have no number of a mask that has this sign."""
    packet = packet_of(node)
    if packet in _BOUNDED or (sign < 0 and packet in _BOUNDED_BELOW):
        return True
    positions = {each: at for each, at in (_LOWER if sign < 0 else _UPPER).items() if each is not _aten.nan_to_num}
    limit = _value(module, _argument(node, positions))
    return limit is not None and bool((sign * limit < -MASKED).all())


def _argument(node: Node, positions: dict[Any, int]) -> Any:
    """The argument of a call at the position for its operator; None without one."""
    position = positions.get(packet_of(node))
    return None if position is None else list(arguments_of(node).values())[position]


def _value(module: GraphModule, node: Any) -> torch.Tensor | None:
    """The numbers of an argument that no input changes, in some shape; None of another one."""
    if not isinstance(node, torch.fx.Node):
        is_number = isinstance(node, (int, float)) and not math.isnan(node)
        return torch.tensor(float(node)) if is_number else None
    if node.op == "get_attr":
        value = attrgetter(str(node.target))(module)
        is_tensor = isinstance(value, torch.Tensor) and not value.is_complex()
        return value.detach().to(torch.float32) if is_tensor else None
    packet = packet_of(node)
    if packet in FULL or packet is _aten.scalar_tensor:
        return _value(module, node.args[FULL.get(packet, 0)])
    return _value(module, node.args[0]) if packet in HANDING_ON else None
