"""Diagonals that a model writes, as masks: backends choose between tensors by a mask, and none writes a diagonal."""

from __future__ import annotations

from functools import partial, reduce
from typing import TYPE_CHECKING, Any

import torch

from lowerdeck.graph.boolean_numbers import only_number
from lowerdeck.graph.masks import constants
from lowerdeck.graph.retracing import replace_by

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch.export import ExportedProgram
    from torch.fx import Node

_aten = torch.ops.aten
_Tensor = torch.Tensor


def fill_diagonals(program: ExportedProgram) -> None:
    """Let `x.fill_diagonal_(number)` in an ATen program and its parts fill in a mask, in place as before."""
    for part in program.graph_module.modules():
        if isinstance(part, torch.fx.GraphModule):
            for node in part.graph.find_nodes(op="call_function", target=_aten.fill_diagonal_.default):
                if _is_known(*node.args, **node.kwargs):
                    replace_by(node, _filled)
            part.recompile()


def write_diagonals(program: ExportedProgram) -> None:
    """Let what an ATen program writes into diagonals be chosen by masks; `rename_outputs` comes next.

    A number is filled in, so that a mask in front of a softmax is known as one.
    """
    nodes = program.graph.find_nodes(op="call_function", target=_aten.diagonal_scatter.default)
    for node in nodes:
        if not _is_known(node.args[0]):
            continue
        values = constants(program)
        number = _number(node.args[1], values)
        replace_by(node, _written if number is None else partial(_written_number, number=number))
    if nodes:
        program.graph.eliminate_dead_code()  # the diagonals that were to be overwritten


def _is_known(x: Node, _: Any = None, wrap: bool = False) -> bool:
    """Whether a mask says what is filled: sizes are fixed; PyTorch wraps by memory, and not by rows."""
    value = x.meta["val"]
    return all(isinstance(size, int) for size in value.shape) and (not wrap or value.is_contiguous())


def _filled(x: _Tensor, number: float, wrap: bool = False) -> _Tensor:
    """As numpy.fill_diagonal: of a tensor [n x ... x n], or of a matrix of any sizes.

    With `wrap` the diagonal of a tall matrix starts again behind an empty row.
    """
    if x.ndim == 2:
        rows, columns = x.shape
        mask = torch.eye(rows, columns, dtype=torch.bool)
        if wrap and rows > columns + 1:
            mask = torch.eye(columns + 1, columns, dtype=torch.bool).repeat(-(-rows // (columns + 1)), 1)[:rows]
    else:
        eye = torch.eye(x.shape[0], dtype=torch.bool)
        mask = reduce(torch.bitwise_and, (eye[(..., *[None] * (x.ndim - 2 - at))] for at in range(x.ndim - 1)))
    return x.masked_fill_(mask, number)


def _mask(x: _Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> _Tensor:
    """bool, as large as `x` in two dimensions: true on the diagonal, `offset` places to the right of the main one."""
    dim1, dim2 = dim1 % x.ndim, dim2 % x.ndim
    rows, columns = x.shape[dim1], x.shape[dim2]
    if offset < 0:
        mask = torch.eye(rows, columns - offset, dtype=torch.bool)[:, -offset:]
    else:
        mask = torch.eye(rows + offset, columns, dtype=torch.bool)[offset:]
    shape = [size if dim in (dim1, dim2) else 1 for dim, size in enumerate(x.shape)]
    return (mask if dim1 < dim2 else mask.t()).reshape(shape)


def _written(x: _Tensor, source: _Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> _Tensor:
    """`source` [... x length of the diagonal], repeated along the other dimension, where the mask is true."""
    along, across = (dim1 % x.ndim, dim2 % x.ndim)[:: 1 if offset >= 0 else -1]
    if missing := x.shape[along] - source.shape[-1]:
        source = torch.nn.functional.pad(source, (0, missing))
    if (place := along - (across < along)) != source.ndim - 1:
        source = source.movedim(-1, place)
    return torch.where(_mask(x, offset, dim1, dim2), source.unsqueeze(across), x)


def _written_number(x: _Tensor, _: _Tensor, *dims: int, number: float, **more: int) -> _Tensor:
    return x.masked_fill(_mask(x, *dims, **more), number)


def _number(source: Node, values: Mapping[Node, Callable[[], Any]]) -> float | None:
    """The number that all elements of what is written have; None where they differ or depend on the input."""
    if source.target == _aten.zero.default:
        return 0
    return only_number(source.args[1] if source.target in (_aten.fill.Scalar, _aten.fill.Tensor) else source, values)
