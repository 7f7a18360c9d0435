"""Decomposes operators that were preserved for the NPU but stay on the CPU, where ExecuTorch has no kernels for them.

Only partitioning, long after decomposition, decides whether an operator is delegated.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import torch
from executorch.exir.pass_base import ExportPass, ProxyValue
from executorch.exir.passes.replace_aten_with_edge_pass import aten_to_edge
from torch.export import default_decompositions
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_map_only

from lowerdeck.graph.nodes import KERNEL_LIBRARY

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
        tensors = [argument for argument in args if isinstance(argument, ProxyValue)]

        def whole(*data: torch.Tensor) -> torch.Tensor:
            given = iter(data)
            result: torch.Tensor = op._op(*tree_map_only(ProxyValue, lambda _: next(given), args), **kwargs)
            return result

        decompositions: Any = default_decompositions()
        parts = make_fx(whole, decomposition_table=decompositions)(*(tensor.data for tensor in tensors))
        given = iter(tensors)
        values: dict[torch.fx.Node, Any] = {}
        for node in parts.graph.nodes:
            if node.op == "placeholder":
                values[node] = next(given)
            elif node.op == "output":
                return values[node.args[0]]
            else:
                arguments = tree_map_only(torch.fx.Node, values.__getitem__, node.args)
                edge = aten_to_edge(_with_kernel(node.target, arguments))
                values[node] = super().call_operator(edge, arguments, dict(node.kwargs), meta)
        raise AssertionError(f"the decomposition of {operator} has no output")


def _with_kernel(operator: torch._ops.OpOverload, arguments: tuple[Any, ...]) -> torch._ops.OpOverload:
    """The overload with a kernel in ExecuTorch: copies for views, `add.Scalar` for `add.Tensor` with a number."""
    if operator.is_view:
        packet = getattr(torch.ops.aten, f"{operator.overloadpacket.__name__}_copy")
        return getattr(packet, operator._overloadname)  # type: ignore[no-any-return]
    if operator._overloadname == "Tensor" and len(arguments) > 1 and not isinstance(arguments[1], ProxyValue):
        return operator.overloadpacket.Scalar  # type: ignore[no-any-return]
    return operator
