"""Copies into another layout, of what several operators of a partition read, for those alone that need it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from executorch.backends.xnnpack.utils.quant_utils import is_dynamic_qdq
from executorch.exir.dialects._ops import ops

from lowerdeck.compat import xnnpack as compat

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import GraphModule, Node

_COPY = ops.edge.aten._to_copy.default
_DEQUANTIZE = ops.edge.quantized_decomposed.dequantize_per_tensor.default


def dequantize_for_each(program: ExportedProgram) -> None:
    """Let each reader of a dequantized tensor dequantize it, in the program of a partition.

    ChannelsLastTaggedReshapePass hands a copy in another layout, which one reader needs, to all of them: those that it
    has visited before keep the tag of the layout that they had, and their results are transposed once too often.
    """
    graph = program.graph
    for node in list(graph.find_nodes(op="call_function", target=_DEQUANTIZE)):
        readers = sorted(node.users, key=lambda reader: reader.op != "output")  # an output is known by its name
        for reader in readers[1:]:
            with graph.inserting_after(node):
                own = graph.node_copy(node)
            reader.replace_input_with(node, own)
    program.graph_module.recompile()


def copy_what_is_quantized() -> Callable[..., None]:
    """What replaces `input_to_nhwc`: it copies the tensor that a layer of dynamic quantization quantizes.

    The original follows first arguments beyond it, up to an input of the partition, and lets all that read this input
    read a channels-last copy, beside other operands as they were.
    """
    original = compat.INPUT_TO_NHWC.original()

    def input_to_nhwc(layouts: Any, module: GraphModule, operand: Any, reader: Node) -> None:
        if not is_dynamic_qdq(operand) or layouts.is_nhwc_node(operand):
            original(layouts, module, operand, reader)
            return
        quantize = operand.args[0]
        source, *parameters = quantize.all_input_nodes
        copy = next((user for user in source.users if user.target is _COPY and layouts.is_nhwc_node(user)), None)
        if copy is None:
            with module.graph.inserting_after(source):
                copy = layouts.create_call_function_node(module, _COPY, (source,), torch.channels_last)
            layouts.mark_as_nhwc_node(copy)
        for each in dict.fromkeys([quantize, *(parameter.args[0] for parameter in parameters)]):
            each.replace_input_with(source, copy)

    return input_to_nhwc
