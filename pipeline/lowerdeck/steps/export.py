"""Step export: a PyTorch model -> ATen exported program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lowerdeck.compat.fast_graph_passes import fast_graph_passes
from lowerdeck.contracts.backends import DynamicDimension, MemoryFormat
from lowerdeck.contracts.errors import LowerdeckError, is_full_memory
from lowerdeck.graph.dynamic_shapes import traced_shapes, try_sizes, violations
from lowerdeck.graph.memory_formats import to_memory_format

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram

    from lowerdeck.steps.eager_comparison import Answers


def export(
    model: torch.nn.Module,
    input_shapes: Sequence[Sequence[int]],
    dynamic_dimensions: Sequence[DynamicDimension] = (),
    memory_format: MemoryFormat | None = None,
    input_dtypes: Sequence[str] = (),
    sequences_as_images: bool = False,
    answers: Answers | None = None,
) -> ExportedProgram:
    """Export `model` for inputs of these shapes.

    All backends use one non-strict program: pt2e.prepare adds what NeutronQuantizer needs of a strict export.

    Args:
        model: In eval mode.
        input_shapes: Shape of every input with its batch dimension.
        dynamic_dimensions: Dimensions of varying size; `input_shapes` has one of the possible sizes.
        memory_format: Memory format of inputs with four dimensions, from which that of other tensors follows; None for
            contiguous.
        input_dtypes: Dtype of every input by name, e.g. `int64`; none where all are float32.
        sequences_as_images: See `lowerdeck.graph.tracing.trace`.
        answers: What the model returned or raised for samples of the dataset, which explains errors.

    Raises:
        LowerdeckError: torch.export cannot trace the model, the model rejects some sizes, returns other things than
            tensors in containers, calls operators of torchvision, computes with complex numbers or as in training, or
            pools in a way that ExecuTorch does not have; the message has the reason, and what to change.
    """
    import torch

    from lowerdeck.graph.tracing import trace
    from lowerdeck.steps.export_errors import export_error, foreign_dtypes

    _check_float(model)
    shapes_to_trace, dynamic_shapes = traced_shapes(input_shapes, dynamic_dimensions)
    dtypes = [getattr(torch, name) for name in input_dtypes] or [torch.float32] * len(shapes_to_trace)
    zeros = tuple(torch.zeros(shape, dtype=dtype) for shape, dtype in zip(shapes_to_trace, dtypes, strict=True))
    example_inputs = to_memory_format(zeros, memory_format or "contiguous")
    sample = _sample(shapes_to_trace, dtypes)
    try:
        model.eval()
        with torch.no_grad(), fast_graph_passes():
            program = trace(model, example_inputs, dynamic_shapes, memory_format or "contiguous", sequences_as_images)
        if foreign_dtypes(model, dtypes):
            _check_dtypes(program, sample)
        found = try_sizes(program, dynamic_dimensions) if dynamic_dimensions else None
    except LowerdeckError:
        raise
    except Exception as error:  # the user's code, which tracing runs, may raise anything
        if is_full_memory(error):
            raise
        found = violations(error, dynamic_dimensions)
        if found is None:
            raise LowerdeckError(export_error(model, sample, dynamic_dimensions, error, answers)) from error
    if found is not None:
        raise LowerdeckError(f"{type(model).__name__} does not take all sizes of model.dynamic_shapes:\n{found}")
    return program


def _check_float(model: torch.nn.Module) -> None:
    """Raise LowerdeckError if torch.ao.quantization has prepared `model`: no backend has kernels for its observers."""
    from torch.ao.quantization import FakeQuantizeBase, ObserverBase

    prepared = (name for name, part in model.named_modules() if isinstance(part, FakeQuantizeBase | ObserverBase))
    if (name := next(prepared, None)) is not None:
        raise LowerdeckError(
            f"{type(model).__name__} has been prepared by torch.ao.quantization: {name or 'it'} observes or rounds "
            "values. Name the float model, which quantization.scheme quantizes; `quantization: int8_qat` trains it here"
        )


def _check_dtypes(program: ExportedProgram, sample: Sequence[torch.Tensor]) -> None:
    """Execute `program` on `sample`: tracing lets pass dtypes that no kernel takes together.

    Raises:
        RuntimeError: an operator does not take those of its operands.
    """
    import torch

    from lowerdeck.graph.state import with_own_state

    try:
        with torch.no_grad():
            with_own_state(program)(*sample)
    except RuntimeError as error:
        if "type" in str(error):  # else it may be due to random inputs, and samples of the dataset will tell
            raise


def _sample(shapes: Sequence[Sequence[int]], dtypes: Sequence[torch.dtype]) -> list[torch.Tensor]:
    """Random inputs; integers are 0 or 1, which every embedding has."""
    import torch

    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(shape, generator=generator).to(dtype)
        if dtype.is_floating_point
        else torch.randint(0, 2, tuple(shape), generator=generator).to(dtype)
        for shape, dtype in zip(shapes, dtypes, strict=True)
    ]
