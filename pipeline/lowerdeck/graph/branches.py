"""Numbers in the branches of torch.cond, as tensors that the branches themselves make.

ExecuTorch makes constants of the numbers that operators take as tensors, but lifts only those of the program itself: a
program with `y * 2.0` in a branch can neither be stored nor written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch._guards import detect_fake_mode

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import GraphModule, Node


def numbers_as_tensors(program: ExportedProgram) -> None:
    """Let branches, and bodies of loops, make tensors of the numbers that their operators take as tensors."""
    root = program.graph_module
    for module in root.modules():
        if isinstance(module, torch.fx.GraphModule) and module is not root:
            _numbers_as_tensors(module)


def _numbers_as_tensors(branch: GraphModule) -> None:
    for node in list(branch.graph.nodes):
        if isinstance(node.target, torch._ops.OpOverload):
            parameters = node.target._schema.arguments
            for index, value in enumerate(node.args):
                if isinstance(value, int | float) and isinstance(parameters[index].type, torch.TensorType):
                    node.update_arg(index, _tensor_of(value, node))
    branch.recompile()


def _tensor_of(value: float, user: Node) -> Node:
    """A tensor without dimensions, whose type yields to that of other operands as a number's does."""
    dtype = torch.tensor(value).dtype
    mode = detect_fake_mode([user.meta["val"]])
    assert mode is not None, "values of exported programs are fake"
    with user.graph.inserting_before(user):
        made = user.graph.call_function(torch.ops.aten.full.default, ([], value), {"dtype": dtype})
    with mode:
        made.meta = {**user.meta, "val": torch.full([], value, dtype=dtype)}
    return made
