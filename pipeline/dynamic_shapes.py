"""Dimensions of inputs whose size varies: how torch.export is told of them, and how a program tells of them again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pipeline.contracts import DynamicDimension

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram

DynamicShapes = tuple[dict[int, Any], ...] | None
"""For every input a mapping of dimension -> torch.export.Dim, None where all shapes are fixed."""


def traced_shapes(
    input_shapes: Sequence[Sequence[int]], dimensions: Sequence[DynamicDimension]
) -> tuple[list[list[int]], DynamicShapes]:
    """The shapes to trace a model with, and what torch.export has to know of those that vary.

    Shapes are those configured, except for a dynamic dimension of size 1: torch.export takes a size of 0 or 1 in an
    example for a constant, so that the next larger size stands there.

    Args:
        input_shapes: Shape of every input with its batch dimension.
        dimensions: Checked by compose: they exist, and the shapes lie within them.
    """
    import torch

    shapes = [list(shape) for shape in input_shapes]
    if not dimensions:
        return shapes, None
    symbols: dict[str, Any] = {}
    dynamic: tuple[dict[int, Any], ...] = tuple({} for _ in shapes)
    for dimension in dimensions:
        step = dimension.multiple_of
        name = dimension.name or f"input{dimension.input}_dim{dimension.dim}"
        symbol = symbols.setdefault(name, torch.export.Dim(name, min=dimension.min // step, max=dimension.max // step))
        dynamic[dimension.input][dimension.dim] = symbol if step == 1 else step * symbol
        steps = max(2, shapes[dimension.input][dimension.dim] // step)
        shapes[dimension.input][dimension.dim] = steps * step
    return shapes, dynamic


def dynamic_shapes_of(program: ExportedProgram) -> DynamicShapes:
    """What `program` was exported with, to export a program made of it with the same; None where all is fixed.

    A program keeps each size that varies as an expression, `s0` or `4*s0`, with the range of its symbol.
    """
    import sympy
    import torch

    names = program.graph_signature.user_inputs
    values = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
    symbols: dict[Any, Any] = {}

    def dim(size: torch.SymInt) -> Any:
        step, symbol = size.node.expr.as_coeff_Mul()
        assert isinstance(symbol, sympy.Symbol), f"the size {size} of an input is no multiple of one symbol"
        if symbol not in symbols:
            limits = program.range_constraints[symbol]
            symbols[symbol] = torch.export.Dim(str(symbol), min=int(limits.lower), max=int(limits.upper))
        return symbols[symbol] if step == 1 else int(step) * symbols[symbol]

    dynamic = tuple(
        {index: dim(size) for index, size in enumerate(values[name].shape) if isinstance(size, torch.SymInt)}
        if isinstance(name, str) and isinstance(values[name], torch.Tensor)
        else {}
        for name in names
    )
    return dynamic if any(dynamic) else None
