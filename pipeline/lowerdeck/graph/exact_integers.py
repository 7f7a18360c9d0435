"""What a program computes of integers and constants alone; where that is integers, no rounding excuses another one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from lowerdeck.graph.masked_scores import CONVERTING, HANDING_ON, packet_of

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Node

_aten = torch.ops.aten
_COMPUTING = (_aten.add, _aten.sub, _aten.mul, _aten.clamp, _aten.clamp_min, _aten.clamp_max)
"""Operators whose results are as much a quantity as their first argument."""


def is_integer(value: Any) -> bool:
    """Whether `value` is a tensor of integers or booleans."""
    return isinstance(value, torch.Tensor) and not value.is_floating_point() and not value.is_complex()


def computed_of_integers(program: ExportedProgram) -> dict[str, Node]:
    """The nodes of an ATen program, by name, to which neither an input of floats nor a parameter contributes."""
    constants, exact = program.graph_signature.inputs_to_lifted_tensor_constants, dict[torch.fx.Node, None]()
    for node in program.graph.nodes:
        if node.op != "placeholder":
            is_exact = exact.keys() >= set(node.all_input_nodes)
        else:
            is_exact = node.name in constants or is_integer(node.meta["val"])
        if is_exact:
            exact[node] = None
    return {node.name: node for node in exact}


def is_rounded_quantity(node: Node) -> bool:
    """Whether `node` has floats that were rounded to integers, such as an image of bytes, and no indices or classes."""
    before = node
    while is_integer(before.meta.get("val")) and packet_of(before) in (*HANDING_ON, *_COMPUTING):
        operand = before.args[0]
        if not isinstance(operand, torch.fx.Node):
            return False
        value = operand.meta.get("val")
        if packet_of(before) in CONVERTING and isinstance(value, torch.Tensor) and value.is_floating_point():
            return bool(before.meta["val"].dtype != torch.bool)
        before = operand
    return False
