"""What is not quantized, whatever a quantizer annotates: other types than float32, and floats between integers.

`(tokens.float() / 2).floor().long()` chooses rows of a table: an index that is off by one is another row, and not a
small error. Quantizers see a product of floats as any other, and some turn what is computed of integers into one.
The same holds for `(layer(x) * 8).floor().long()` from the rounding on: 8 bits of a range up to 7 may have no 5, and
what is a little less than 5 becomes 4. Inputs of floats may be whole numbers, too, such as masks and columns of a
table: `mask.sum(1).long()`.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch
from torchao.quantization.pt2e import FakeQuantizeBase, ObserverBase

from lowerdeck.graph.exact_integers import is_integer
from lowerdeck.quantization.shared_layers import LAYERS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from torch.fx import GraphModule, Node

_aten = torch.ops.aten
_WEIGHTED = (*LAYERS, _aten.bmm.default, _aten.embedding.default, _aten.matmul.default, _aten.mm.default)
"""What multiplies by weights or chooses among them; these may have become constants before."""

_EXACT: dict[str, Any] = {"rounding_mode": None}
_ROUNDING: dict[Any, Any] = {_aten.div.Tensor: _aten.div.Tensor_mode, _aten.div_.Tensor: _aten.div_.Tensor_mode}
"""Divisions, and the same that may also round."""
_SIGNS: dict[Any, Any] = {_aten.sign.default: _aten.sgn.default, _aten.sign_.default: _aten.sgn_.default}
"""What Arm's passes write with products of floats, and the same for complex numbers, which they do not know."""

_WHOLE = (
    *(getattr(_aten, name).default for name in ("ceil", "floor", "floor_divide", "round", "sgn", "sign", "trunc")),
    *(getattr(_aten, name).default for name in ("ceil_", "floor_", "round_", "sgn_", "sign_", "trunc_")),
    *(_aten.floor_divide.Scalar, _aten.div.Tensor_mode, _aten.div.Scalar_mode, _aten.div_.Tensor_mode),
    *(_aten.clamp.default, _aten.clamp_.default, _aten.clamp.Tensor, _aten.clamp_max.default, _aten.clamp_min.default),
    *(_aten.hardtanh.default, _aten.hardtanh_.default, _aten.relu6.default, _aten.relu6_.default),
)
"""What makes whole numbers of any floats; limits are whole where integers follow, and a value of many."""
CASTS = (_aten.to.dtype, _aten.to.dtype_layout, _aten.to.other, _aten.type_as.default, _aten._to_copy.default)


def leave_other_types(prepared: GraphModule) -> None:
    """Remove observers of all but float32, which some quantizers annotate.

    Integers, e.g. a counter, have no scale; PyTorch's operators quantize no float64; and none of the backends takes
    half precision around integers: XNNPACK's compiler even ends the process.
    """
    values = {node: _value(prepared, node.all_input_nodes[0]) for node in _observers(prepared)}
    _remove([node for node, value in values.items() if value is not None and value.dtype != torch.float32], prepared)


def leave_floats_between_integers(prepared: GraphModule, trained: Collection[str], known: frozenset[str]) -> None:
    """Remove observers of floats that are computed of whole numbers, inputs and constants alone and become integers.

    Other users of these floats keep the observers. Layers are quantized also behind an image of bytes: what they
    compute is not meant to be exact.

    Args:
        prepared: Changed in place.
        trained: Names of the model's parameters; all other tensors are constants.
        known: What `hide_exact_divisions` returned. Other floats between booleans are what a quantizer writes logic
            with: 8 bits have zero and one exactly.
    """
    found = dict[torch.fx.Node, None]()
    for floats, integers in _floats_between_integers(prepared, trained):
        if not known.isdisjoint(node.name for node in floats) or integers != {torch.bool}:
            found |= floats
    _remove([node for node in _observers(prepared) if node in found], prepared, found)


def hide_exact_divisions(module: GraphModule, trained: Collection[str]) -> frozenset[str]:
    """Write divisions and signs of such floats in a way that quantizers do not replace by products.

    41 * (1 / 41) is less than 1 in float32, and 0 as an integer.

    Returns:
        The names of these floats.
    """
    show_exact_divisions(module)  # those that the model itself writes so
    found = [node for floats, _ in _floats_between_integers(module, trained) for node in floats]
    for node in found:
        if node.target in _ROUNDING:
            node.target, node.kwargs = _ROUNDING[node.target], _EXACT
        node.target = _SIGNS.get(node.target, node.target)
    return frozenset(node.name for node in found)


def show_exact_divisions(prepared: GraphModule) -> None:
    """Undo `hide_exact_divisions` in a module that was made from it."""
    for exact, rounding in _ROUNDING.items():
        for node in prepared.graph.find_nodes(op="call_function", target=rounding):
            if node.kwargs == _EXACT:
                node.target, node.kwargs = exact, {}
    for sign, hidden in _SIGNS.items():
        for node in prepared.graph.find_nodes(op="call_function", target=hidden):
            node.target = sign
    prepared.recompile()


def _floats_between_integers(
    module: GraphModule, trained: Collection[str]
) -> Iterator[tuple[dict[Node, None], set[torch.dtype]]]:
    """For integers computed of whole numbers or inputs: the floats between them, and the types of both ends."""
    results, of_whole, rounded = _whole_numbers(module, trained)
    for result in results:
        floats, integers, waiting = dict[torch.fx.Node, None](), {_dtype(module, result)}, [result]
        while waiting:
            for each in waiting.pop().all_input_nodes:
                if is_integer(_value(module, each)):
                    integers.add(_dtype(module, each))
                elif each in of_whole and each not in floats:
                    floats[each] = None
                    waiting += [each] if each not in rounded else []
        yield floats, integers


def _whole_numbers(module: GraphModule, trained: Collection[str]) -> tuple[list[Node], set[Node], set[Node]]:
    """Integers that are computed of whole numbers or inputs, all that is, and among these what rounds other floats."""
    results, of_integers = list[torch.fx.Node](), set[torch.fx.Node]()
    of_whole, rounded = set[torch.fx.Node](), set[torch.fx.Node]()
    for node in module.graph.nodes:
        is_computed = node.op.startswith("call") and node.target not in _WEIGHTED
        is_alike = is_computed and of_integers.issuperset(node.all_input_nodes)
        is_whole = is_computed and of_whole.issuperset(node.all_input_nodes)
        if is_integer(_value(module, node)):
            # a comparison of a layer's result with a number is not exact, whether it was rounded before or not
            is_cast = is_whole and node.target in CASTS and _dtype(module, node) != torch.bool
            results += [node] if is_alike or is_cast else []
            is_alike = True
        if is_alike or (node.op == "get_attr" and node.target not in trained):
            of_integers.add(node)
        elif not is_whole and node.target in _WHOLE:
            rounded.add(node)
        if is_whole or node in of_integers or node in rounded or node.op == "placeholder":
            of_whole.add(node)
    return results, of_whole, rounded


def _observers(prepared: GraphModule) -> list[Node]:
    modules = dict(prepared.named_modules(remove_duplicate=False))
    calls = prepared.graph.find_nodes(op="call_module")
    return [node for node in calls if isinstance(modules[str(node.target)], (ObserverBase, FakeQuantizeBase))]


def _value(module: GraphModule, node: Node) -> torch.Tensor | None:
    """An example of a node's tensor, which an observer passes on; quantizers give none to constants that they make."""
    while node.op == "call_module":
        node = node.all_input_nodes[0]
    value: Any = node.meta.get("val")
    if value is None and node.op == "get_attr":
        value = operator.attrgetter(str(node.target))(module)
    return value if isinstance(value, torch.Tensor) else None


def _dtype(module: GraphModule, node: Node) -> torch.dtype:
    value = _value(module, node)
    assert value is not None, "a tensor of integers"
    return value.dtype


def _remove(observers: Sequence[Node], prepared: GraphModule, found: Collection[Node] | None = None) -> None:
    """Remove observers; with `found`, only from what leads to integers or is among these nodes."""
    for node in reversed(observers):
        source = node.all_input_nodes[0]
        node.replace_all_uses_with(
            source, delete_user_cb=lambda user: found is None or _is_exact(user, prepared, found)
        )
        if not node.users:
            prepared.graph.erase_node(node)
    if observers:
        called = {node.target for node in prepared.graph.find_nodes(op="call_module")}
        for name in {str(node.target) for node in observers if node.target not in called}:
            prepared.delete_submodule(name)  # the next call leaves further names of an observer that nodes share
        prepared.delete_all_unused_submodules()
        prepared.recompile()


def _is_exact(user: Node, prepared: GraphModule, found: Collection[Node]) -> bool:
    return user in found or is_integer(_value(prepared, user))
