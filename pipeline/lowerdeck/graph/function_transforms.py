"""What torch.vmap and torch.func compute, as operators: torch.export keeps Python functions around them."""

from __future__ import annotations

import torch
from torch.export import ExportedProgram

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.graph.library_errors import described_node
from lowerdeck.graph.nodes import operator_name

GRADIENT_ADVICE = (
    "torch.export does not follow gradients by torch.func and torch.autograd.grad. Write the derivative out, as in "
    "`2 * x` for that of `x ** 2`"
)
_ADVICE = (
    "Call torch.vmap outside of torch.cond and of loops, and hand them its result; or write what it maps for all rows "
    "at once"
)
_MODULE = "torch._functorch.predispatch"
"""The functions that open and close a transform, and wrap the tensors within."""


def apply_transforms(program: ExportedProgram) -> ExportedProgram:
    """`program`, with the operators that torch.vmap makes of those for one row.

    Raises:
        LowerdeckError: torch.func computes a gradient, or torch.vmap is called in a branch or loop: torch.export has
            not kept their operands.
    """
    parts = (part for part in program.graph_module.modules() if isinstance(part, torch.fx.GraphModule))
    calls = [node for part in parts for node in part.graph.nodes if getattr(node.target, "__module__", "") == _MODULE]
    if not calls:
        return program
    try:
        applied: ExportedProgram = program.run_decompositions({})
    except RuntimeError as error:
        is_gradient = any("grad" in operator_name(call) for call in calls)
        advice = GRADIENT_ADVICE if is_gradient else _ADVICE
        raise LowerdeckError(f"{described_node(calls[-1])} has lost its operands at export\n{advice}") from error
    return applied
