"""Control flow stays in float: torch.cond, map and scan, and all that their branches and bodies compute.

Quantizers give one scale to all operands of torch.cond, the weights of its branches included: that of the largest.
Observers in a branch see nothing while the other one is taken, and those in the body of a scan see nothing at all: they
keep the scale 1, which rounds a factor of 0.25 to zero.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch.fx import Node

_higher = torch.ops.higher_order
_OPERATORS = (_higher.cond, _higher.map_impl, _higher.scan)


def control_flow(model: torch.fx.GraphModule) -> list[Node]:
    """The nodes of control flow and what selects their results in `model`, and all nodes of branches and bodies."""
    found = [node for node in model.graph.nodes if node.op == "call_function" and node.target in _OPERATORS]
    found += [user for node in found for user in node.users if user.target is operator.getitem]
    parts = [part for part in model.modules() if isinstance(part, torch.fx.GraphModule) and part is not model]
    return found + [node for part in parts for node in part.graph.nodes]
