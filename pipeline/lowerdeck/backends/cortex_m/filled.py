"""Tensors of one number, such as `torch.zeros_like(x)`, among integers.

FoldAndAnnotateQParamsPass removes the quantization behind them, and the dequantization in front of `full_like`, but not
the number, which is then taken for an integer: 0.4 becomes 0, which stands for another value than 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from executorch.backends.cortex_m.passes.passes_utils import quantize_val
from executorch.exir.dialects._ops import ops as exir_ops

from lowerdeck.graph.nodes import operator_name

if TYPE_CHECKING:
    from torch.fx import Graph

_FILLED = (exir_ops.edge.aten.full.default, exir_ops.edge.aten.full_like.default)

_CLAMP = exir_ops.edge.aten.clamp.Tensor


def fill_with_integers(graph: Graph) -> None:
    """Let tensors of one number hold the integer that stands for it where they are quantized, and floats elsewhere."""
    for node in [node for node in graph.nodes if node.target in _FILLED]:
        for user in list(node.users):
            if operator_name(user) != "quantized_decomposed.quantize_per_tensor.default":
                continue
            for read in list(user.users):
                for clamp in [each for each in read.users if each.target is _CLAMP and each.args[0] is not read]:
                    clamp.replace_input_with(read, node)  # the passes read numbers in its bounds
            scale, zero_point, smallest, largest, dtype = user.args[1:6]
            integer = int(quantize_val(float(node.args[1]), scale, zero_point, smallest, largest))
            with graph.inserting_after(node):
                filled = graph.call_function(node.target, (node.args[0], integer), {**node.kwargs, "dtype": dtype})
            filled.meta = {**node.meta, "val": user.meta["val"]}
            user.replace_all_uses_with(filled)
            graph.erase_node(user)
        if node.users:
            node.kwargs = {**node.kwargs, "dtype": node.meta["val"].dtype}
        else:
            graph.erase_node(node)
