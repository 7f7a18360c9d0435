"""Equal programs: their element types are verified once, and what was decomposed is not decomposed again."""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable, Hashable, Mapping
from types import MappingProxyType
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
        from executorch.exir.dialects.edge._ops import EdgeOpOverload

        try:
            content = _content(module.graph, EdgeOpOverload)
        except _UnknownError:
            self._verify(module)
            return
        if content not in self._passed:
            self._verify(module)
            self._passed.add(content)


class DecomposedOnce:
    """Replaces `run_decompositions`: what came from it is returned where the table has none of its operators.

    What a partitioner has noted at nodes meanwhile is removed, as tracing again would do: XNNPACK's notes which
    quantizations it takes in with an operator, and drops them even if that operator is then kept on the CPU.
    """

    def __init__(self, decompose: Callable[..., Any]) -> None:
        """`decompose(program, decomp_table, ...)` returns another program."""
        self._decompose = decompose
        self._decomposed: weakref.WeakKeyDictionary[Any, tuple[Hashable, set[str]]] = weakref.WeakKeyDictionary()

    def replacement(self) -> Callable[..., Any]:
        """The method."""

        def run_decompositions(program: Any, decomp_table: Any = None, *arguments: Any, **options: Any) -> Any:
            if isinstance(decomp_table, Mapping) and program in self._decomposed:
                content, noted = self._decomposed[program]
                has_operator = any(node.target in decomp_table for node in program.graph.nodes)
                if not has_operator and _operators_of(program) == content:
                    for node in program.graph.nodes:
                        for key in node.meta.keys() - noted:
                            del node.meta[key]
                    return program
            found = self._decompose(program, decomp_table, *arguments, **options)
            if (content := _operators_of(found)) is not None:
                self._decomposed[found] = content, {key for node in found.graph.nodes for key in node.meta}
            return found

        return run_decompositions


def _operators_of(program: Any) -> Hashable | None:
    """The content of a program of PyTorch's operators, with its signature; None if it may depend on more.

    An operator that a partitioner keeps whole has another name meanwhile, under which no table has it.
    """
    from executorch.exir.program._program import transform_op_to_aten_op
    from torch._ops import OpOverload

    try:
        return _content(program.graph, OpOverload, transform_op_to_aten_op), str(program.graph_signature)
    except _UnknownError:
        return None


def _content(graph: Any, operators: type, originals: Mapping[str, Any] = MappingProxyType({})) -> Hashable:
    """Operators, their arguments and the layouts of all values, which together decide about element types.

    Raises:
        _UnknownError: it has graphs within it, stored tensors, sizes that vary, or calls that are no `operators`.
    """
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
        if node.op == "call_function" and not (isinstance(node.target, operators) or node.target is operator.getitem):
            raise _UnknownError
        if node.op not in ("placeholder", "call_function", "output"):
            raise _UnknownError
        called = originals.get(str(node.target), node.target) if node.op == "call_function" else node.op
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
