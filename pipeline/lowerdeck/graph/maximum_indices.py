"""`torch.max` and `torch.min` over a dimension whose indices are used: argmax or argmin, and amax or amin.

Backends take these operators for their values alone. Arm's passes put the values in the place of the indices, or fail;
Cortex-M's fail.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch.export import ExportedProgram

_ATEN = torch.ops.aten
_SEPARATE = {
    _ATEN.max.dim: (_ATEN.amax.default, _ATEN.argmax.default),
    _ATEN.min.dim: (_ATEN.amin.default, _ATEN.argmin.default),
}


def separate_maximum_indices(program: ExportedProgram) -> None:
    """Compute values and indices by an operator each, where the model uses the indices; `rename_outputs` comes next.

    All of these return the first of equal values, and the first NaN. Operators that return values alone stay.
    """
    graph = program.graph
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target not in _SEPARATE:
            continue
        users = [user for user in node.users if user.target is operator.getitem]
        source = node.args[0]
        if not any(user.args[1] == 1 and user.users for user in users) or source.meta["val"].dtype == torch.bool:
            continue  # torch has no argmax of booleans
        values, indices = _SEPARATE[node.target]
        dimension, keep = node.args[1], node.args[2] if len(node.args) > 2 else False
        for user in users:
            if user.users:
                with graph.inserting_before(node):
                    made = (
                        graph.call_function(values, (source, [dimension], keep))
                        if user.args[1] == 0
                        else graph.call_function(indices, (source, dimension, keep))
                    )
                made.meta = {**node.meta, "val": node.meta["val"][user.args[1]]}
                user.replace_all_uses_with(made)
            graph.erase_node(user)
        graph.erase_node(node)
