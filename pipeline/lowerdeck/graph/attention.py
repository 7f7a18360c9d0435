"""`scaled_dot_product_attention` as the products and the softmax that it is.

Few quantizers know it, and ExecuTorch decomposes it only behind them, so that all of an attention stayed in float.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from lowerdeck.graph.masked_scores import HANDING_ON, packet_of
from lowerdeck.graph.masks import constants, stored_constant

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Node

_aten = torch.ops.aten
_DEFAULTS = {"attn_mask": None, "dropout_p": 0.0, "is_causal": False, "scale": None, "enable_gqa": False}


def attention_as_products(program: ExportedProgram) -> None:
    """Write attention in an ATen program as its parts; `rename_outputs` comes next.

    One with a mask that depends on inputs stays: where a mask leaves nothing, the result is 0, and that of a softmax
    NaN.
    """
    known = constants(program, may_be_trained=True)
    for node in program.graph.find_nodes(op="call_function", target=_aten.scaled_dot_product_attention.default):
        names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
        _reshape_behind(node)
        options = {**_DEFAULTS, **dict(zip(names, node.args, strict=False)), **node.kwargs}
        mask = options["attn_mask"]
        if not options["dropout_p"] and not options["enable_gqa"] and (mask is None or _leaves_something(known, mask)):
            if mask is not None and mask.meta["val"].dtype == torch.bool:
                left_out = known[mask]().logical_not()
                options["attn_mask"] = stored_constant(program, f"left_out_by_{mask.name}", left_out)
            wanted = ("query", "key", "value", "is_causal", "scale", "attn_mask")
            _replace(program, node, *(options[name] for name in wanted))


def _leaves_something(known: Mapping[Node, Callable[[], Any]], mask: Node) -> bool:
    """Whether a mask is the same for all inputs, and every query has a key."""
    value = known[mask]() if mask in known else torch.zeros(1, dtype=torch.bool)
    return bool((value if value.dtype == torch.bool else value > -math.inf).any(-1).all())


def _replace(
    program: ExportedProgram,
    node: Node,
    query: Node,
    key: Node,
    value: Node,
    is_causal: bool,
    scale: float | None,
    mask: Node | None,
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
            scores = called(_aten.masked_fill.Scalar, scores, later, -math.inf)
        elif mask is not None and mask.meta["val"].dtype == torch.bool:
            scores = called(_aten.masked_fill.Scalar, scores, mask, -math.inf)
        elif mask is not None:
            scores = called(_aten.add.Tensor, scores, mask)
        attended = called(_aten.matmul.default, called(_aten.softmax.int, scores, -1), value)
    node.replace_all_uses_with(attended)
    graph.erase_node(node)


def _reshape_behind(attended: Node) -> None:
    """Let views of the result copy where they have to.

    PyTorch has kernels whose results differ in their memory format, and chooses among them by whether gradients are on.
    """
    waiting, seen = [attended], set[Any]()
    while waiting:
        node = waiting.pop()
        seen.add(node)
        if node.target == _aten.view.default:
            node.target = _aten.reshape.default
        waiting.extend(user for user in node.users if packet_of(user) in HANDING_ON and user not in seen)


def _later_positions(program: ExportedProgram, rows: int, columns: int) -> Node:
    """Which keys come after a query, as a constant of the program: kernels would compute it at every call."""
    later = torch.ones(rows, columns, dtype=torch.bool).triu(1)
    return stored_constant(program, f"later_positions_{rows}_{columns}", later)
