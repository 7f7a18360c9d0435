"""Operators with two results, as an operator for each.

Backends take `torch.max(x, dim)` and `torch.min(x, dim)` for their values alone: Arm's passes put the values in the
place of the indices, or fail; Cortex-M's fail. `var_mean`, `std_mean` and `aminmax` have neither patterns nor kernels.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Node

_ATEN = torch.ops.aten


class _Call(NamedTuple):
    target: Any
    arguments: Sequence[Any]
    keywords: Mapping[str, Any] = {}


def separate_pairs(program: ExportedProgram) -> None:
    """Compute both results by an operator each; `rename_outputs` comes next.

    `max` and `min` over a dimension stay where the model uses their values alone. argmax and argmin return the first of
    equal values, and the first NaN, as they do.
    """
    graph = program.graph
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        calls = _calls(node, node.args[0] if node.args else None, *node.args[1:], **node.kwargs)
        if calls is None:
            continue
        for user in [user for user in node.users if user.target is operator.getitem]:
            if user.users:
                call = calls[user.args[1]]
                with graph.inserting_before(node):
                    made = graph.call_function(call.target, tuple(call.arguments), dict(call.keywords))
                made.meta = {**node.meta, "val": node.meta["val"][user.args[1]]}
                user.replace_all_uses_with(made)
            graph.erase_node(user)
        graph.erase_node(node)


def _calls(node: Node, source: Any, *args: Any, **kwargs: Any) -> tuple[_Call, _Call] | None:
    """What computes either result of `node`, whose arguments these are; None where it stays."""
    if node.target in _WITH_INDICES:
        is_used = any(user.target is operator.getitem and user.args[1] == 1 and user.users for user in node.users)
        if not is_used or source.meta["val"].dtype == torch.bool:  # torch has no argmax of booleans
            return None
        values, indices = _WITH_INDICES[node.target]
        dimension, keep = args[0], args[1] if len(args) > 1 else False
        return _Call(values, (source, [dimension], keep)), _Call(indices, (source, dimension, keep))
    if node.target is _ATEN.aminmax.default:
        dimension = kwargs.get("dim")
        rest = [] if dimension is None else [dimension], kwargs.get("keepdim", False)
        return _Call(_ATEN.amin.default, (source, *rest)), _Call(_ATEN.amax.default, (source, *rest))
    if node.target in _WITH_MEAN:
        is_over_all = not args or isinstance(args[0], bool) or not args[0]
        dimensions = list(range(source.meta["val"].ndim)) if is_over_all else args[0]
        keep = kwargs.get("keepdim", args[2] if len(args) > 2 else False)
        spread = _Call(_WITH_MEAN[node.target], (source, *args), kwargs)
        return spread, _Call(_ATEN.mean.dim, (source, dimensions, keep))
    return None


_WITH_INDICES = {
    _ATEN.max.dim: (_ATEN.amax.default, _ATEN.argmax.default),
    _ATEN.min.dim: (_ATEN.amin.default, _ATEN.argmin.default),
}
_WITH_MEAN: dict[Any, Any] = {
    getattr(both, name): getattr(alone, name)
    for both, alone in ((_ATEN.var_mean, _ATEN.var), (_ATEN.std_mean, _ATEN.std))
    for name in ("default", "dim", "correction")
}
