"""Adaptive max pooling, which ExecuTorch has neither a kernel nor a decomposition for.

Where the output's sizes divide the input's, it is a max pooling with fixed windows, which every backend has.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

import torch

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.graph.modules import module_path
from lowerdeck.graph.source_lines import source_line

if TYPE_CHECKING:
    from torch.export import ExportedProgram

_FIXED = {
    torch.ops.aten.adaptive_max_pool1d.default: torch.ops.aten.max_pool1d.default,
    torch.ops.aten.adaptive_max_pool2d.default: torch.ops.aten.max_pool2d.default,
}


def fix_adaptive_max_pooling(program: ExportedProgram) -> None:
    """Replace adaptive max pooling in an ATen program by max pooling; `rename_outputs` comes next.

    Raises:
        LowerdeckError: sizes do not divide or vary, or the indices are used; the message says where and what to write.
    """
    graph = program.graph
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target not in _FIXED:
            continue
        source, wanted = node.args[0], node.args[1]
        outputs = [wanted] * (1 if "1d" in str(node.target) else 2) if isinstance(wanted, int) else list(wanted)
        sizes = list(source.meta["val"].shape[-len(outputs) :])
        pooled = [user for user in node.users if user.target is operator.getitem and user.args[1] == 0]
        others = [user for user in node.users if user not in pooled]
        if any(user.users for user in others):
            raise _error(node, "returns indices, which ExecuTorch does not have: leave out return_indices")
        if not all(isinstance(size, int) and size % output == 0 for size, output in zip(sizes, outputs, strict=True)):
            divisors = "choose output sizes that divide the input's, pool to size 1, or use adaptive_avg_pool2d"
            raise _error(node, f"makes {outputs} of {sizes}, which fixed windows cannot: {divisors}")
        window = [size // output for size, output in zip(sizes, outputs, strict=True)]
        with graph.inserting_before(node):
            fixed = graph.call_function(_FIXED[node.target], (source, window, window))
        fixed.meta = {**node.meta, "val": node.meta["val"][0]}
        for user in pooled:
            user.replace_all_uses_with(fixed)
        for user in (*pooled, *others):
            graph.erase_node(user)
        graph.erase_node(node)


def _error(node: torch.fx.Node, problem: str) -> LowerdeckError:
    place = ", ".join(filter(None, (module_path(node), source_line(node.meta.get("stack_trace")))))
    return LowerdeckError(f"{node.target} ({place}) {problem}")
