"""Step export: a PyTorch model -> ATen exported program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pipeline.contracts import DynamicDimension, LowerdeckError
from pipeline.dynamic_shapes import traced_shapes, violations
from pipeline.memory_formats import MemoryFormat, laid_out
from pipeline.provenance import shared_provenance

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram


def export(
    model: torch.nn.Module,
    input_shapes: Sequence[Sequence[int]],
    dynamic_dimensions: Sequence[DynamicDimension] = (),
    memory_format: MemoryFormat = "contiguous",
) -> ExportedProgram:
    """Export `model` for inputs of these shapes.

    One non-strict program serves all backends: what strict export adds and NeutronQuantizer needs is added before
    quantization (pt2e.prepare).

    Args:
        model: in eval mode.
        input_shapes: shape of every float32 input with its batch dimension.
        dynamic_dimensions: those whose size may vary, `input_shapes` being one of the possible choices.
        memory_format: how inputs of four dimensions lie in memory; what is computed from them follows.

    Raises:
        LowerdeckError: torch.export cannot trace the model, with its reason; or the model does not take every size,
            with what to change in model.dynamic_shapes.
    """
    import torch

    shapes_to_trace, dynamic_shapes = traced_shapes(input_shapes, dynamic_dimensions)
    example_inputs = laid_out(tuple(torch.zeros(*shape) for shape in shapes_to_trace), memory_format)
    try:
        with torch.no_grad(), shared_provenance():
            return torch.export.export(model.eval(), example_inputs, dynamic_shapes=dynamic_shapes)
    except Exception as error:  # user's code runs while tracing: anything may come out of it
        if (said := violations(error, dynamic_dimensions)) is not None:
            raise LowerdeckError(
                f"{type(model).__name__} cannot take all sizes of model.dynamic_shapes, as torch.export found:\n{said}"
            ) from error
        shapes = ", ".join(map(str, shapes_to_trace))
        keys = "model.input_shapes and model.dynamic_shapes" if dynamic_dimensions else "model.input_shapes"
        raise LowerdeckError(
            f"{type(model).__name__} cannot be exported with inputs of shape {shapes} ({keys}): "
            f"{type(error).__name__}: {error}"
        ) from error
