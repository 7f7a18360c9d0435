"""`scaled_dot_product_attention` as the products and the softmax that it is.

Few quantizers know it, and ExecuTorch decomposes it only behind them, so that all of an attention stayed in float.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from executorch.backends.transforms.utils import create_constant_placeholder
from torch.export.graph_signature import InputKind

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Node

_aten = torch.ops.aten
_DEFAULTS = {"attn_mask": None, "dropout_p": 0.0, "is_causal": False, "scale": None, "enable_gqa": False}


def attention_as_products(program: ExportedProgram) -> None:
    """Write attention in an ATen program as its parts; `rename_outputs` comes next.

    One with a mask of the model's own stays: where a mask leaves nothing, the result is 0, and that of a softmax NaN.
    """
    for node in program.graph.find_nodes(op="call_function", target=_aten.scaled_dot_product_attention.default):
        names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
        options = {**_DEFAULTS, **dict(zip(names, node.args, strict=False)), **node.kwargs}
        if options["attn_mask"] is None and not options["dropout_p"] and not options["enable_gqa"]:
            _replace(program, node, *(options[name] for name in ("query", "key", "value", "is_causal", "scale")))


def _replace(
    program: ExportedProgram, node: Node, query: Node, key: Node, value: Node, is_causal: bool, scale: float | None
) -> None:
    graph = node.graph

    def called(operator: Any, *arguments: Any, **options: Any) -> Node:
        made = graph.call_function(operator, arguments, options)
        values = [argument.meta["val"] if isinstance(argument, torch.fx.Node) else argument for argument in arguments]
        with query.meta["val"].fake_mode:
            made.meta = {**node.meta, "val": operator(*values, **options)}
        return made

    width = query.meta["val"].shape[-1]
    with graph.inserting_before(node):
        scaled = called(_aten.mul.Tensor, query, width**-0.5 if scale is None else scale)
        scores = called(_aten.matmul.default, scaled, called(_aten.transpose.int, key, -2, -1))
        if is_causal:
            later = _later_positions(program, *scores.meta["val"].shape[-2:])
            scores = called(_aten.masked_fill.Scalar, scores, later, float("-inf"))
        attended = called(_aten.matmul.default, called(_aten.softmax.int, scores, -1), value)
    node.replace_all_uses_with(attended)
    graph.erase_node(node)


def _later_positions(program: ExportedProgram, rows: int, columns: int) -> Node:
    """Which keys come after a query, as a constant of the program: kernels would compute it at every call."""
    graph = program.graph
    with graph.inserting_before(next(node for node in graph.nodes if node.op == "placeholder")):
        later: Node = create_constant_placeholder(
            program,
            graph,
            f"later_positions_{rows}_{columns}",
            InputKind.CONSTANT_TENSOR,
            torch.ones(rows, columns, dtype=torch.bool).triu(1),
        )
    return later
