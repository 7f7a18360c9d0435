"""Scales of weights beside which biases fit into 32 bits.

A bias is quantized with the product of the scales of inputs and weights. A channel that pruning, or a batch norm with a
factor of almost zero, has left with tiny weights and a bias would need integers beyond 32 bits: the bias saturated, by
any share of itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from lowerdeck.quantization.ranges import constant_values, observer_nodes

if TYPE_CHECKING:
    from torch.fx import GraphModule, Node

_LARGEST = 2**30
"""Of a quantized bias: half of what 32 bits hold, because products are added to it."""
_LEVELS = 127
"""Of weights on either side of zero; with fewer bits their scales are larger, and so are those of biases."""
_aten = torch.ops.aten
_LAYERS = (
    _aten.conv1d.default,
    _aten.conv2d.default,
    _aten.conv2d.padding,
    _aten.conv3d.default,
    _aten.conv_transpose1d.default,
    _aten.conv_transpose2d.input,
    _aten.linear.default,
)


def make_room_for_biases(prepared: GraphModule) -> None:
    """Widen the observed ranges of weights that are too small for the biases of their channels; they become zeros.

    Args:
        prepared: A calibrated model, also one that is trained.
    """
    modules = dict(prepared.named_modules(remove_duplicate=False))
    observers = {node: modules[node.target] for node in observer_nodes(prepared)}
    layers = [node for node in prepared.graph.nodes if node.target in _LAYERS and len(node.args) > 2 and node.args[2]]
    values = constant_values(prepared) if layers else {}
    for node in layers:
        inputs, weights = (_observer(each, observers) for each in node.args[:2])
        bias = values.get(node.args[2])
        if inputs is not None and weights is not None and bias is not None:
            scale, _ = inputs.calculate_qparams()
            _widen(weights, _LEVELS * bias.detach().abs() / (_LARGEST * scale.max()))


def _observer(node: Node, observers: dict[Node, Any]) -> Any:
    """Its observer, if that has a range of its own to widen."""
    observer = observers.get(node)
    observer = getattr(observer, "activation_post_process", observer)
    return observer if isinstance(getattr(observer, "max_val", None), torch.Tensor) else None


def _widen(observer: Any, needed: torch.Tensor) -> None:
    """Let a range reach to `needed` [c] on one side, of each channel or of all."""
    seen: torch.Tensor = observer.max_val
    if seen.shape != needed.shape:
        needed = needed.max()
    if seen.shape == needed.shape:
        largest = torch.maximum(seen.abs(), observer.min_val.abs())
        observer.max_val = torch.where(largest < needed, needed, seen)
