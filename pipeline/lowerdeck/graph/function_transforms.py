"""What torch.vmap and torch.func compute, as operators: torch.export keeps Python functions around them."""

from __future__ import annotations

import torch
from torch.export import ExportedProgram

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.graph.library_errors import described_node

ADVICE = (
    "torch.export does not follow gradients by torch.func and torch.autograd.grad. Write the derivative out, as in "
    "`2 * x` for that of `x ** 2`"
)
_MODULE = "torch._functorch.predispatch"
"""The functions that open and close a transform, and wrap the tensors within."""


def apply_transforms(program: ExportedProgram) -> ExportedProgram:
    """`program`, with the operators that torch.vmap makes of those for one row.

    Raises:
        LowerdeckError: torch.func computes a gradient, whose operands torch.export has taken for constants.
    """
    parts = (part for part in program.graph_module.modules() if isinstance(part, torch.fx.GraphModule))
    calls = [node for part in parts for node in part.graph.nodes if getattr(node.target, "__module__", "") == _MODULE]
    if not calls:
        return program
    try:
        applied: ExportedProgram = program.run_decompositions({})
    except RuntimeError as error:
        raise LowerdeckError(f"{described_node(calls[-1])} has no operands\n{ADVICE}") from error
    return applied
