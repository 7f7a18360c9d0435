"""Decomposes operators that were preserved for the NPU but stay on the CPU, where ExecuTorch has no kernels for them.

Only partitioning, long after decomposition, decides whether an operator is delegated.
"""

from __future__ import annotations

from collections.abc import Collection
from operator import getitem
from typing import TYPE_CHECKING, Any

import torch
from executorch.exir.pass_base import ExportPass, ProxyValue

from lowerdeck.graph.nodes import KERNEL_LIBRARY
from lowerdeck.graph.preserved_operators import decomposed

if TYPE_CHECKING:
    from executorch.exir import EdgeProgramManager


def decompose_remaining(
    manager: EdgeProgramManager, preserved: Collection[torch._ops.OpOverload]
) -> EdgeProgramManager:
    """Decompose the operators of `preserved` that are neither in delegates nor on a kernel library."""
    left = [node for node in manager.exported_program().graph.nodes if KERNEL_LIBRARY not in node.meta]
    if not any(getattr(node.target, "_op", None) in preserved for node in left):
        return manager
    return manager.transform([_Decompose(preserved)])


class _Decompose(ExportPass):  # type: ignore[misc]
    """Replaces operators by their decompositions."""

    def __init__(self, preserved: Collection[torch._ops.OpOverload]) -> None:
        super().__init__()
        self._preserved = preserved

    def call_operator(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], meta: Any) -> ProxyValue:
        operator = getattr(op, "_op", None)
        if operator not in self._preserved or KERNEL_LIBRARY in meta.data:
            return super().call_operator(op, args, kwargs, meta)

        def call(called: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> ProxyValue:
            if called is getitem:
                return super(_Decompose, self).call_getitem(*arguments, meta)
            return super(_Decompose, self).call_operator(called, arguments, named, meta)

        return decomposed(op, args, kwargs, ProxyValue, lambda value: value.data, call)
