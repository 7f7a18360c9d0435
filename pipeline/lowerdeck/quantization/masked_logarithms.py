"""Logarithms of a softmax behind a mask, such as those of a policy whose actions are not all allowed, stay in float.

A softmax needs to know of a masked score that it is less than the others, and its logarithm how much: no 8 bits have
-1e9 and steps for the scores that are kept.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any

import torch
from torchao.quantization.pt2e.quantizer import Quantizer

from lowerdeck.graph.masked_scores import HANDING_ON, MASKED, OPERANDS, packet_of
from lowerdeck.quantization.annotation import hidden, repair_float_neighbours, show
from lowerdeck.quantization.shared_layers import LAYERS

if TYPE_CHECKING:
    from torch.fx import GraphModule, Node

_aten = torch.ops.aten
_LOGARITHMS = (_aten.log_softmax, _aten._log_softmax, _aten.logsumexp)
_SCORES = (*HANDING_ON, *OPERANDS, _aten.sub, _aten.div)
"""Operators between a mask and a logarithm."""
_BOUNDED = (
    *(_aten.exp, _aten.softmax, _aten._softmax, _aten.sigmoid, _aten.tanh, _aten.logsumexp),
    *(_aten.argmax, _aten.gt, _aten.ge, _aten.lt, _aten.le, _aten.eq, _aten.ne, _aten.isinf, _aten.isfinite),
)
"""Operators whose results have no number of a mask, whatever they read."""
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
    scores = _scores(module)
    carrying, found = set[torch.fx.Node](), list[torch.fx.Node]()
    logarithms = {node for node in module.graph.nodes if packet_of(node) in _LOGARITHMS}
    for node in module.graph.nodes:
        if node in scores and _is_mask(module, node):
            carrying.add(node)
        elif node.op == "call_function" and not carrying.isdisjoint(node.all_input_nodes):
            if packet_of(node) in _LAYERS:
                continue
            found.append(node)
            if packet_of(node) not in _BOUNDED:
                carrying.add(node)
    masks = [node for node in carrying if node.op == "call_function" and node not in found]
    return [*masks, *found] if not logarithms.isdisjoint(found) else []


def _scores(module: GraphModule) -> set[Node]:
    """What a logarithm reads, and what it is made of."""
    found = set[torch.fx.Node]()
    waiting = [node.args[0] for node in module.graph.nodes if packet_of(node) in _LOGARITHMS]
    while waiting:
        node = waiting.pop()
        if node not in found and (node.op == "get_attr" or packet_of(node) in _SCORES):
            found.add(node)
            waiting.extend(node.all_input_nodes)
    return found


def _is_mask(module: GraphModule, node: Node) -> bool:
    """Whether it has, or fills in, a number that leaves no steps for scores."""
    if node.op == "get_attr":
        value: Any = attrgetter(str(node.target))(module)
        is_tensor = isinstance(value, torch.Tensor) and value.is_floating_point()
        return is_tensor and bool((value.abs() >= -MASKED).any())
    return any(isinstance(each, (int, float)) and abs(each) >= -MASKED for each in _numbers(node))


def _numbers(node: Node) -> tuple[Any, ...]:
    """The arguments of a node that may be numbers of a mask: a slice ends at 2 ** 63."""
    return tuple(node.args[at] for at in OPERANDS.get(packet_of(node), ()) if at < len(node.args))
