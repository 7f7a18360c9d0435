"""Gives operators on the CPU the indices of 64 bits that their kernels take; Arm's passes make 32 of constant ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from executorch.exir.dialects._ops import ops as exir_ops
from executorch.exir.pass_base import ExportPass

if TYPE_CHECKING:
    from executorch.exir import EdgeProgramManager
    from torch.fx import GraphModule

_SCATTERS = (torch.ops.aten.scatter.src, torch.ops.aten.scatter.value, torch.ops.aten.scatter_add.default)
_GATHER = exir_ops.edge.aten.gather.default
_CAST = exir_ops.edge.dim_order_ops._to_dim_order_copy.default


def cast_indices_of_scatters(module: GraphModule) -> None:
    """Cast them in an ATen program: no Ethos-U takes scatters, and ExecuTorch's verifier refuses some of 32 bits."""
    for node in module.graph.nodes:
        if node.target not in _SCATTERS:
            continue
        index = node.args[2]
        if index.meta["val"].dtype == torch.int32:
            with module.graph.inserting_before(node):
                cast = module.graph.call_function(torch.ops.aten.to.dtype, (index, torch.int64))
            cast.meta = {**index.meta, "val": index.meta["val"].to(torch.int64)}
            node.update_arg(2, cast)
    module.recompile()


def cast_indices_of_gathers(manager: EdgeProgramManager) -> EdgeProgramManager:
    """Cast those that a lowered program leaves to the CPU: the NPU of an Ethos-U85 takes indices of 32 bits alone."""
    nodes = manager.exported_program().graph.nodes
    if not any(node.target == _GATHER and node.args[2].meta["val"].dtype == torch.int32 for node in nodes):
        return manager
    return manager.transform([_CastOfGathers()])


class _CastOfGathers(ExportPass):  # type: ignore[misc]  # ExecuTorch is untyped
    def call_operator(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], meta: Any) -> Any:
        if op == _GATHER and args[2].data.dtype == torch.int32:
            order = list(args[2].data.dim_order())
            index = super().call_operator(_CAST, (args[2],), {"dtype": torch.int64, "dim_order": order}, meta)
            args = (*args[:2], index, *args[3:])
        return super().call_operator(op, args, kwargs, meta)
