"""Compares an exported program with the model that it was made from, which nothing else executes any more."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch.utils._pytree import tree_leaves

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.contracts.samples import Split, finite_sample
from lowerdeck.graph.io_boundary import input_dtypes
from lowerdeck.graph.outputs import output_names
from lowerdeck.runtime.torch_program import TorchProgram

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.export import ExportedProgram

_MOST_DIFFERENT, _MOST_DIFFERENT_HALF = 0.01, 0.05
"""Most that a program's output may be off the model's, relative to its norm, where rounding does not explain more."""
_TIMES_ROUNDING = 10
"""As many times as far as an output moves with the last digits of the inputs, it may be off: of equal values, other
ones may be chosen."""
_NOTHING = 1e-6


def check_answers(model: torch.nn.Module, program: ExportedProgram, split: Split) -> None:
    """Check that the program answers the first sample of a split as the model does when nothing exports it.

    A model may compute something else while it is traced: where it asks `torch.compiler.is_compiling()`,
    `torch.compiler.is_exporting()` or `type(x) is torch.Tensor`.

    Args:
        model: The exported model, which is executed once or twice; its buffers stay as they are.
        program: What `export` made of it.
        split: Samples of it; none are compared where there are none.

    Raises:
        LowerdeckError: an output differs by more than rounding makes of it.
    """
    if not len(split):
        return
    dtypes = input_dtypes(program)
    inputs = [value.to(dtype) for value, dtype in zip(finite_sample(split, 0).inputs, dtypes, strict=True)]
    actual = TorchProgram(program)(tuple(inputs))
    try:
        expected = _answers(model, inputs)
    except (OSError, MemoryError):  # a full memory, for example, says nothing about the model
        raise
    except Exception as error:  # whatever the model raises where nothing traces it
        print(
            f"export: warning: the model was not compared with its program: it raised {type(error).__name__}: {error}"
        )
        return
    types = [", ".join(f"{each.dtype} {list(each.shape)}" for each in values) for values in (expected, actual)]
    if types[0] != types[1]:
        print("export: warning: the model returns {} and, while it is exported, {}".format(*types))
    if [value.shape for value in expected] != [value.shape for value in actual]:
        return
    half = any(value.dtype in (torch.float16, torch.bfloat16) for value in (*model.parameters(), *inputs))
    tolerance = _MOST_DIFFERENT_HALF if half else _MOST_DIFFERENT
    differences = list(map(_difference, expected, actual))
    if max(differences, default=0.0) <= tolerance:
        return
    generator = torch.Generator().manual_seed(0)
    nearby = [value + _nearby(value, generator) if value.is_floating_point() else value for value in inputs]
    moved = map(_difference, expected, _answers(model, nearby))
    for name, difference, most in zip(output_names(program), differences, moved, strict=True):
        if difference > max(tolerance, _TIMES_ROUNDING * most):
            _refuse(model, program, f"{name} of the program is {100 * difference:.3g} % off the model's")
            return


def _refuse(model: torch.nn.Module, program: ExportedProgram, what: str) -> None:
    """Raise LowerdeckError, or say it where the program may have sorted equal numbers in another order."""
    found = f"{type(model).__name__} answers otherwise while it is exported: on the first evaluation sample, {what}."
    if program.graph.find_nodes(op="call_function", target=torch.ops.aten.topk.default):
        print(f"export: warning: {found} It sorts: of equal numbers, the program may take other ones first")
        return
    raise LowerdeckError(
        f"{found} Look in the model, and in the packages that it uses, for torch.compiler.is_compiling(), "
        "torch.compiler.is_exporting() and type(x) is torch.Tensor, and let it compute the same in both cases. If what "
        "it computes while it is exported is meant, save that program by torch.export.save and choose model: exported"
    )


def _answers(model: torch.nn.Module, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """What `model` returns where nothing traces it; its buffers and `inputs` stay as they are."""
    buffers = {name: value.clone() for name, value in model.named_buffers()}
    with torch.no_grad():
        returned = torch.func.functional_call(model, buffers, tuple(value.clone() for value in inputs))
    return [value.detach() for value in tree_leaves(returned) if isinstance(value, torch.Tensor)]


def _difference(expected: torch.Tensor, actual: torch.Tensor) -> float:
    """How far apart two outputs are, relative to the norm of the first; of integers, the share that differs.

    Where the first is not finite, the second may be any number: programs leave out by finite ones.
    """
    if not expected.is_floating_point():
        return float((expected != actual).double().mean()) if expected.numel() else 0.0
    one, other = expected.double(), actual.double()
    known = one.isfinite()
    one, off = one[known], (other - one)[known]
    if not off.numel() or float(off.abs().max()) <= _NOTHING:
        return 0.0
    share = float(torch.linalg.vector_norm(off) / torch.linalg.vector_norm(one).clamp(min=_NOTHING))
    return math.inf if math.isnan(share) else share  # NaN, which is less than no bound, where the model has a number


def _nearby(value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    largest = value.abs().max() if value.numel() else 0
    return torch.randn(value.shape, generator=generator).to(value.dtype) * largest * torch.finfo(value.dtype).eps * 8
