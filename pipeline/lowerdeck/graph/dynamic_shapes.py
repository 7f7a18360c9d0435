"""Dynamic dimensions of inputs, in the form for torch.export and as read back from a program."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lowerdeck.contracts.backends import DynamicDimension
from lowerdeck.contracts.errors import is_full_memory

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram

DynamicShapes = tuple[dict[int, Any], ...] | None
"""For each input a mapping from dimension to torch.export.Dim; None where all shapes are fixed."""


def traced_shapes(
    input_shapes: Sequence[Sequence[int]], dimensions: Sequence[DynamicDimension]
) -> tuple[list[list[int]], DynamicShapes]:
    """The shapes to trace a model with, and the dynamic shapes for torch.export.

    Shapes are those configured, except that a dynamic dimension of size 1 gets the next larger size, because
    torch.export treats example sizes of 0 and 1 as constants.

    Args:
        input_shapes: Shape of every input with its batch dimension.
        dimensions: Valid dimensions whose limits include the shapes; compose checks both.
    """
    import torch

    shapes = [list(shape) for shape in input_shapes]
    if not dimensions:
        return shapes, None
    symbols: dict[str, Any] = {}
    dynamic: tuple[dict[int, Any], ...] = tuple({} for _ in shapes)
    for dimension in dimensions:
        step = dimension.multiple_of
        name = _symbol_name(dimension)
        symbol = symbols.setdefault(name, torch.export.Dim(name, min=dimension.min // step, max=dimension.max // step))
        dynamic[dimension.input][dimension.dim] = symbol if step == 1 else step * symbol
        steps = max(2, shapes[dimension.input][dimension.dim] // step)
        shapes[dimension.input][dimension.dim] = steps * step
    return shapes, dynamic


def try_sizes(program: ExportedProgram, dimensions: Sequence[DynamicDimension]) -> str | None:
    """Why `program` rejects the smallest, next or largest sizes of `dimensions`; None where it accepts all.

    torch.export does not always report that a model accepts fewer sizes than declared, especially with multiples: it
    narrows the range or leaves a guard in the program.
    """
    import torch

    from lowerdeck.graph.state import with_own_state

    module = with_own_state(program, check_guards=True)
    assert program.example_inputs is not None
    for which in range(3):
        examples = program.example_inputs[0]
        shapes = [list(example.shape) for example in examples]
        for dimension in dimensions:
            sizes = (dimension.min, dimension.min + dimension.multiple_of, dimension.max)
            shapes[dimension.input][dimension.dim] = sizes[which]
        try:
            with torch.no_grad():
                module(*(torch.zeros(shape, dtype=one.dtype) for shape, one in zip(shapes, examples, strict=True)))
        except Exception as error:  # guards raise AssertionError, operators of the model anything
            if is_full_memory(error):
                raise
            return f"  inputs of shape {', '.join(map(str, shapes))}: {' '.join(str(error).split())}"
    return None


def violations(error: BaseException, dimensions: Sequence[DynamicDimension]) -> str | None:
    """torch.export's objections to each of `dimensions`; None where `error` has another cause."""
    text = str(error)
    if not text.startswith("Constraints violated"):
        return None
    found, _, suggested = text.partition("Suggested fixes:")
    suggested = suggested.partition("\n\n")[0]
    lines = []
    for index, dimension in enumerate(dimensions):
        name, size = _symbol_name(dimension), f"size()[{dimension.dim}]"
        what = f"model.dynamic_shapes.{index} (dimension {dimension.dim} of input {dimension.input})"
        fixed = re.search(rf"You marked {name} as dynamic but .* specialized it to be a constant \((\d+)\)", found)
        equal = re.search(rf"The values of {name} = .* and (\w+) = .* must always be equal", found)
        guards = re.findall(rf"(?m)Not all values of {name} = .*? satisfy the generated guard (.*?)\.?$", found)
        if fixed:
            lines.append(f"{what}: the model works only with {fixed[1]}; leave it out")
        elif equal:
            other = next(i for i, candidate in enumerate(dimensions) if _symbol_name(candidate) == equal[1])
            lines.append(f"{what}: must equal model.dynamic_shapes.{other}; give both the same `name`")
        elif guards:
            conditions = "; ".join(re.sub(rf"L\['\w+'\]\.{re.escape(size)}", "size", guard) for guard in guards)
            lines.append(f"{what}: not every size fulfils {conditions}{_suggestion(name, suggested)}")
    return "\n".join(f"  {line}" for line in lines or [" ".join(found.split())])


def _suggestion(name: str, suggested: str) -> str:
    """torch.export's suggestion for the dimension `name`, in keys of `model.dynamic_shapes`."""
    step = re.search(rf"^\s*{name} = (\d+)\*_{name}$", suggested, re.MULTILINE)
    limits = re.search(rf"^\s*_?{name} = Dim\('_?{name}'(?:, min=(\d+))?(?:, max=(\d+))?\)", suggested, re.MULTILINE)
    if limits is None:
        return ""
    factor = int(step[1]) if step else 1
    keys = {key: int(value) * factor for key, value in zip(("min", "max"), limits.groups(), strict=True) if value}
    keys |= {"multiple_of": factor} if step else {}
    return f"; it suggests {', '.join(f'{key}: {value}' for key, value in keys.items())}"


def _symbol_name(dimension: DynamicDimension) -> str:
    return dimension.name or f"input{dimension.input}_dim{dimension.dim}"


def dynamic_shapes_of(program: ExportedProgram) -> DynamicShapes:
    """The dynamic shapes of `program`, for exporting a derived program; None where all are fixed.

    A program stores each dynamic size as an expression, `s0` or `4*s0`, with the range of its symbol.
    """
    import sympy
    import torch

    names = program.graph_signature.user_inputs
    values = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
    symbols: dict[Any, Any] = {}

    def dim(size: torch.SymInt) -> Any:
        step, symbol = size.node.expr.as_coeff_Mul()
        assert isinstance(symbol, sympy.Symbol), f"the size {size} of an input is not a multiple of one symbol"
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
