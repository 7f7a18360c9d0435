"""Adaptive max pooling, which ExecuTorch has neither a kernel nor a decomposition for.

Where the output's sizes divide the input's, it is a max pooling with fixed windows, which every backend has. Elsewhere
its windows differ in size and overlap, and a pooling of each is put together, one dimension after the other.
"""

from __future__ import annotations

import operator
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.graph.modules import module_path
from lowerdeck.graph.retracing import called
from lowerdeck.graph.source_lines import source_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.export import ExportedProgram
    from torch.fx import Node

_aten = torch.ops.aten
_FIXED: dict[Any, Any] = {
    _aten.adaptive_max_pool1d.default: _aten.max_pool1d.default,
    _aten.adaptive_max_pool2d.default: _aten.max_pool2d.default,
}
_EACH = [(0, 1), (1, 2)]
"""The first windows of a dimension that is not pooled."""


def fix_adaptive_max_pooling(program: ExportedProgram) -> None:
    """Replace adaptive max pooling in an ATen program by max pooling; `rename_outputs` comes next.

    Raises:
        LowerdeckError: sizes vary, or the indices are used; the message says where and what to write.
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
        if not all(isinstance(size, int) for size in sizes):
            ways_out = "pool to size 1 (torch.amax), use adaptive_avg_pool2d, or state the sizes"
            raise _error(node, f"makes {outputs} of sizes that vary, which fixed windows cannot: {ways_out}")
        with graph.inserting_before(node):
            fixed = _pooled(node, source, [_windows(*each) for each in zip(sizes, outputs, strict=True)])
        for user in pooled:
            user.replace_all_uses_with(fixed)
        for user in (*pooled, *others):
            graph.erase_node(user)
        graph.erase_node(node)


def _windows(size: int, count: int) -> list[tuple[int, int]]:
    """Where each window begins and ends, as PyTorch has it: they cover the input, and share an element if need be."""
    return [(size * index // count, -(-size * (index + 1) // count)) for index in range(count)]


def _pooled(node: Node, source: Node, windows: Sequence[Sequence[tuple[int, int]]]) -> Node:
    """The maxima of `source` over windows, given for each of its last dimensions, at the graph's point of insertion."""
    alike = [_alike(each) for each in windows]
    if None not in alike:
        sizes, steps = (list(each) for each in zip(*filter(None, alike), strict=True))
        return called(node, _FIXED[node.target], source, sizes, steps)
    for number, bounds in enumerate(windows):
        others = [_EACH] * len(windows)
        if alike[number] is not None:
            source = _pooled(node, source, [*others[:number], bounds, *others[number + 1 :]])
            continue
        dim, parts = number - len(windows), list[torch.fx.Node]()
        for start, end in bounds:
            part = called(node, _aten.slice.Tensor, source, dim, start, end)
            parts.append(_pooled(node, part, [*others[:number], [(0, end - start)], *others[number + 1 :]]))
        source = called(node, _aten.cat.default, parts, dim)
    return source


def _alike(windows: Sequence[tuple[int, int]]) -> tuple[int, int] | None:
    """Size and step of windows that all have the same; windows of one element that all outputs share have no step."""
    sizes = {end - start for start, end in windows}
    steps = {following - start for (start, _), (following, _) in pairwise(windows)} or {windows[0][1]}
    return (min(sizes), min(steps)) if len(sizes) == len(steps) == 1 and min(steps) > 0 else None


def _error(node: torch.fx.Node, problem: str) -> LowerdeckError:
    place = ", ".join(filter(None, (module_path(node), source_line(node.meta.get("stack_trace")))))
    return LowerdeckError(f"{node.target} ({place}) {problem}")
