"""Gives operators on the CPU, and the model's outputs, the integers of 64 bits that Arm's passes make 32 of."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
from executorch.exir.dialects._ops import ops as exir_ops
from executorch.exir.pass_base import ExportPass
from torch.fx import Node
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from lowerdeck.compat.arm import CAST_INPUTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from executorch.exir import EdgeProgramManager
    from torch.fx import GraphModule

_SCATTERS = (
    *(torch.ops.aten.scatter.src, torch.ops.aten.scatter.value, torch.ops.aten.scatter_add.default),
    torch.ops.aten.index_copy.default,
)
_VALUES = {
    torch.ops.aten.scatter.src: 3,
    torch.ops.aten.scatter_add.default: 3,
    torch.ops.aten.scatter_reduce.two: 3,
    torch.ops.aten.index_add.default: 3,
    torch.ops.aten.index_copy.default: 3,
    torch.ops.aten.index_put.default: 2,
}
"""Operators that write values into their first argument, which has to be of the same type, and where they lie."""
_GATHER = exir_ops.edge.aten.gather.default
_CAST = exir_ops.edge.dim_order_ops._to_dim_order_copy.default


def cast_indices_of_scatters(module: GraphModule) -> None:
    """Cast them in an ATen program: no Ethos-U takes scatters, and ExecuTorch's verifier refuses some of 32 bits.

    PyTorch itself refuses those of `index_copy`, which calibration calls where the values stay in float.
    """
    for node in module.graph.nodes:
        if node.target in _SCATTERS and node.args[2].meta["val"].dtype == torch.int32:
            node.update_arg(2, _widened(node.args[2], node))
    module.recompile()


def values_of_one_type() -> AbstractContextManager[None]:
    """Let Arm's passes give values 64 bits again where they are written into a tensor of 64 bits, and vice versa."""
    trace = CAST_INPUTS.original()

    def call_operator(cast: Any, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], meta: Any) -> Any:
        if (position := _VALUES.get(op)) is not None:
            places = (0, position)
            types = {args[place].data.dtype for place in places}
            if types == {torch.int32, torch.int64}:
                args = tuple(
                    trace(cast, torch.ops.aten.to.dtype, (each, torch.int64), {}, meta) if place in places else each
                    for place, each in enumerate(args)
                )
        return trace(cast, op, args, kwargs, meta)

    return CAST_INPUTS.active(call_operator)


def output_types(module: GraphModule) -> list[torch.dtype | None]:
    """Element types of what `module` returns, in order; None of what is no tensor."""
    return [_dtype(output) for output in tree_leaves(module.graph.output_node().args)]


def cast_outputs(module: GraphModule, dtypes: Sequence[torch.dtype | None]) -> None:
    """Cast the outputs of 32 bits that had 64, such as `x.long()`, before Arm's passes.

    Args:
        module: What they made.
        dtypes: `output_types` of what it was made from.
    """
    returned = module.graph.output_node()
    outputs, structure = tree_flatten(returned.args)
    for index, (output, dtype) in enumerate(zip(outputs, dtypes, strict=True)):
        if (dtype, _dtype(output)) == (torch.int64, torch.int32):
            outputs[index] = _widened(output, returned)
    returned.args = tree_unflatten(outputs, structure)
    module.recompile()


def _dtype(output: Any) -> torch.dtype | None:
    value = output.meta.get("val") if isinstance(output, Node) else None
    return value.dtype if isinstance(value, torch.Tensor) else None


def _widened(node: Node, before: Node) -> Node:
    """`node`, of 32 bits, cast to 64 in front of `before`."""
    with before.graph.inserting_before(before):
        cast = before.graph.call_function(torch.ops.aten.to.dtype, (node, torch.int64))
    cast.meta = {**node.meta, "val": node.meta["val"].to(torch.int64)}
    return cast


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
