"""Keeps every input of a concatenation that reads a tensor more than once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from executorch.exir.dialects._ops import ops

from lowerdeck.compat import arm

if TYPE_CHECKING:
    from torch.fx import Node

_CAT = ops.edge.aten.cat.default


def complete_concatenations() -> Callable[[Any, Node, Node], bool]:
    """Return the method that moves a permutation in front of a concatenation, where that loses none of its inputs.

    It makes the new inputs from the set of the old ones, so that `cat([x, x, x], 1)` becomes `cat([x], 1)`.
    """
    move = arm.MOVE_BEFORE_CONCATENATION.original()

    def move_complete(up_pass: Any, permutation: Node, node: Node) -> bool:
        if node.target == _CAT and len(node.args[0]) > len(node.all_input_nodes):  # type: ignore[arg-type]
            return False
        moved: bool = move(up_pass, permutation, node)
        return moved

    return move_complete
