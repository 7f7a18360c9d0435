"""Element types of an edge program, verified once and not again by everything that hands it on."""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable
from typing import Any


class _UnknownError(Exception):
    """A graph depends on more than what is compared."""


class VerifiedOnce:
    """Replaces the verification of a graph's element types: a graph that is equal to one that passed passes, too."""

    def __init__(self, verify: Callable[[Any], None]) -> None:
        """`verify(graph_module)` raises an exception where element types do not fit."""
        self._verify = verify
        self._passed: set[Hashable] = set()

    def __call__(self, module: Any) -> None:
        """Verify the graph of `module`."""
        try:
            content = _content(module.graph)
        except _UnknownError:
            self._verify(module)
            return
        if content not in self._passed:
            self._verify(module)
            self._passed.add(content)


def _content(graph: Any) -> Hashable:
    """Operators, their arguments and the layouts of all values, which together decide about element types.

    Raises:
        _UnknownError: it has graphs within it, stored tensors, or sizes that vary.
    """
    from executorch.exir.dialects.edge._ops import EdgeOpOverload
    from torch.fx import Node

    position: dict[Node, int] = {}

    def argument(value: Any) -> Hashable:
        if isinstance(value, Node):
            return "node", position[value]
        if isinstance(value, (list, tuple)):
            return type(value), *map(argument, value)
        return type(value), repr(value)

    nodes: list[Hashable] = []
    for node in graph.nodes:
        if node.op == "call_function" and not (
            isinstance(node.target, EdgeOpOverload) or node.target is operator.getitem
        ):
            raise _UnknownError
        if node.op not in ("placeholder", "call_function", "output"):
            raise _UnknownError
        called = node.target if node.op == "call_function" else node.op
        arguments = argument(node.args), tuple((name, argument(value)) for name, value in node.kwargs.items())
        nodes.append((called, arguments, _layout(node.meta.get("val"))))
        position[node] = len(position)
    return tuple(nodes)


def _layout(value: Any) -> Hashable:
    """What a verification may see of a value."""
    import torch

    if isinstance(value, torch.Tensor):
        layout = value.dtype, tuple(value.shape), value.stride(), value.device
        if (
            not all(isinstance(size, int) for size in (*layout[1], *layout[2]))
            or getattr(value, "constant", None) is not None
        ):
            raise _UnknownError
        return layout
    if isinstance(value, (list, tuple)):
        return type(value), *map(_layout, value)
    return type(value), repr(value)
