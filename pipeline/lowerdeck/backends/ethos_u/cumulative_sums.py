"""Corrects how Arm's backend turns a cumulative sum into a convolution."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from executorch.exir.dialects._ops import ops

from lowerdeck.compat import arm

if TYPE_CHECKING:
    from torch.fx import GraphModule

_CUMSUM = ops.edge.aten.cumsum.default
_QUANTIZED_INPUTS = "input_qparams"
"""Where Arm's passes keep the quantization of a node's inputs once their quantize and dequantize nodes are folded."""


def quantized_kernels() -> Callable[[Any, GraphModule], Any]:
    """Return DecomposeCumsumPass.call, with its input's type corrected where the sum is quantized.

    The pass gives the convolution's kernel of ones the type of the sum's input. At this point the graph was traced
    with tanh and other functions that become tables later. On integers they return float32, and so does everything
    behind them, although its values are integers of 8 or 16 bits, for which TOSA requires a kernel of int8.
    """
    decompose = arm.DECOMPOSE_CUMSUM.original()

    def decompose_quantized(cumsum_pass: Any, graph_module: GraphModule) -> Any:
        for node in graph_module.graph.find_nodes(op="call_function", target=_CUMSUM):
            (summed, *_) = node.all_input_nodes
            if node.meta.get(_QUANTIZED_INPUTS) and summed.meta["val"].is_floating_point():
                summed.meta["val"] = summed.meta["val"].to(torch.int8)
        return decompose(cumsum_pass, graph_module)

    return decompose_quantized
