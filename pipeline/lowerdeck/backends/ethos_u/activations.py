"""Corrects how Arm's backend fuses activation functions into convolutions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from executorch.backends.arm._passes.quant_args import QuantArgs
from executorch.backends.arm.constants import QUANT_PER_TENSOR_OP
from executorch.exir.dialects._ops import ops

from lowerdeck.compat import arm

if TYPE_CHECKING:
    from torch.fx import GraphModule, Node

_RELU, _HARDTANH = ops.edge.aten.relu.default, ops.edge.aten.hardtanh.default
_PRODUCERS = (ops.edge.aten.convolution.default, ops.edge.aten.linear.default)
_DEQUANTIZE = ops.edge.quantized_decomposed.dequantize_per_tensor.default


def exact_fusing() -> Callable[[Any, GraphModule], Any]:
    """Return FuseQuantizedActivationPass.call, preceded by the separation of activations that must not be dropped.

    The pass drops a ReLU between a convolution and the quantization of its result, because the integers saturate at
    zero anyway. That is so only if zero is the smallest integer. Otherwise the convolution's result gets the same
    quantization in front of the ReLU, which changes no value: the ReLU then compares integers.
    """
    fuse = arm.FUSE_QUANTIZED_ACTIVATION.original()

    def fuse_exactly(fusing_pass: Any, graph_module: GraphModule) -> Any:
        for node in list(graph_module.graph.nodes):
            quantize = _quantize_after(node)
            if quantize is not None and not _saturation_equals(node, quantize):
                _quantize_before(graph_module, node, quantize)
        return fuse(fusing_pass, graph_module)

    return fuse_exactly


def _quantize_after(node: Node) -> Node | None:
    """The quantization of the result, if `node` is an activation function between it and a convolution."""
    if node.op != "call_function" or node.target not in (_RELU, _HARDTANH):
        return None
    (producer, *_), users = node.all_input_nodes, list(node.users)
    fused = producer.target in _PRODUCERS and len(producer.users) == 1
    return users[0] if fused and len(users) == 1 and users[0].target == QUANT_PER_TENSOR_OP else None


def _saturation_equals(activation: Node, quantize: Node) -> bool:
    """Whether the integers of `quantize` cannot represent anything that `activation` would clip."""
    quantization = QuantArgs.from_operator(quantize.target, quantize.args)
    low, high = (0.0, None) if activation.target == _RELU else activation.args[1:3]
    assert isinstance(low, (int, float))
    covers_high = high is None or quantization.quantize_value(high).item() == quantization.qmax
    return quantization.quantize_value(low).item() == quantization.qmin and covers_high


def _quantize_before(graph_module: GraphModule, activation: Node, quantize: Node) -> None:
    producer, parameters = activation.all_input_nodes[0], quantize.args[1:]
    with graph_module.graph.inserting_before(activation):
        quantized = graph_module.graph.call_function(quantize.target, (producer, *parameters))  # type: ignore[arg-type]
        dequantized = graph_module.graph.call_function(_DEQUANTIZE, (quantized, *parameters))
    quantized.meta, dequantized.meta = dict(quantize.meta), dict(activation.meta)
    activation.replace_input_with(producer, dequantized)
