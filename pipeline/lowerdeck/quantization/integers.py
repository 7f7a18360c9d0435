"""What is not quantized, whatever a quantizer annotates: other types than float32, and floats between integers.

`(tokens.float() / 2).floor().long()` chooses rows of a table: an index that is off by one is another row, and not a
small error. Quantizers see a product of floats as any other, and some turn what is computed of integers into one.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch
from torchao.quantization.pt2e import FakeQuantizeBase, ObserverBase

from lowerdeck.graph.exact_integers import is_integer
from lowerdeck.quantization.shared_layers import LAYERS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from torch.fx import GraphModule, Node

_aten = torch.ops.aten
_WEIGHTED = (*LAYERS, _aten.bmm.default, _aten.embedding.default, _aten.matmul.default, _aten.mm.default)
"""What multiplies by weights or chooses among them; these may have become constants before."""

_EXACT: dict[str, Any] = {"rounding_mode": None}
_ROUNDING: dict[Any, Any] = {_aten.div.Tensor: _aten.div.Tensor_mode, _aten.div_.Tensor: _aten.div_.Tensor_mode}
"""Divisions, and the same that may also round."""


def leave_other_types(prepared: GraphModule) -> None:
    """Remove observers of all but float32, which some quantizers annotate.

    Integers, e.g. a counter, have no scale; PyTorch's operators quantize no float64; and none of the backends takes
    half precision around integers: XNNPACK's compiler even ends the process.
    """
    values = {node: _value(prepared, node.all_input_nodes[0]) for node in _observers(prepared)}
    _remove([node for node, value in values.items() if value is not None and value.dtype != torch.float32], prepared)


def leave_floats_between_integers(prepared: GraphModule, trained: Collection[str], known: frozenset[str]) -> None:
    """Remove observers of floats that are computed of integers and constants alone and become integers again.

    Layers are quantized also behind an image of bytes: what they compute is not meant to be exact.

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
    _remove([node for node in _observers(prepared) if node in found], prepared)


def hide_exact_divisions(module: GraphModule, trained: Collection[str]) -> frozenset[str]:
    """Write divisions of such floats in a way that quantizers do not replace by products with a reciprocal.

    41 * (1 / 41) is less than 1 in float32, and 0 as an integer.

    Returns:
        The names of these floats.
    """
    show_exact_divisions(module)  # those that the model itself writes so
    found = [node for floats, _ in _floats_between_integers(module, trained) for node in floats]
    for node in found:
        if node.target in _ROUNDING:
            node.target, node.kwargs = _ROUNDING[node.target], _EXACT
    return frozenset(node.name for node in found)


def show_exact_divisions(prepared: GraphModule) -> None:
    """Undo `hide_exact_divisions` in a module that was made from it."""
    for exact, rounding in _ROUNDING.items():
        for node in prepared.graph.find_nodes(op="call_function", target=rounding):
            if node.kwargs == _EXACT:
                node.target, node.kwargs = exact, {}
    prepared.recompile()


def _floats_between_integers(
    module: GraphModule, trained: Collection[str]
) -> Iterator[tuple[dict[Node, None], set[torch.dtype]]]:
    """For integers that are computed of integers alone: the floats between them, and the types of both ends."""
    of_integers, results = set[torch.fx.Node](), list[torch.fx.Node]()
    for node in module.graph.nodes:
        is_computed = node.op.startswith("call") and node.target not in _WEIGHTED
        is_alike = is_computed and of_integers.issuperset(node.all_input_nodes)
        is_constant = node.op == "get_attr" and node.target not in trained
        if is_integer(_value(module, node)):
            of_integers.add(node)
            results += [node] if is_alike else []  # a comparison of a layer's result with a number is not exact
        elif is_constant or is_alike:
            of_integers.add(node)
    for result in results:
        floats, integers, waiting = dict[torch.fx.Node, None](), {_dtype(module, result)}, [result]
        while waiting:
            for each in waiting.pop().all_input_nodes:
                if is_integer(_value(module, each)):
                    integers.add(_dtype(module, each))
                elif each in of_integers and each not in floats:
                    floats[each] = None
                    waiting.append(each)
        yield floats, integers


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


def _remove(observers: Collection[Node], prepared: GraphModule) -> None:
    for node in observers:
        node.replace_all_uses_with(node.all_input_nodes[0])
        prepared.graph.erase_node(node)
    if observers:
        prepared.delete_all_unused_submodules()
        prepared.recompile()
