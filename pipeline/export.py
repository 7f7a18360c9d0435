"""Step export: a PyTorch model -> ATen exported program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pipeline.contracts import LowerdeckError
from pipeline.provenance import shared_provenance

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram


def export(model: torch.nn.Module, input_shapes: Sequence[Sequence[int]]) -> ExportedProgram:
    """Export `model` for inputs of fixed shape.

    One non-strict program serves all backends: what strict export adds and NeutronQuantizer needs is added before
    quantization (pt2e.prepare).

    Args:
        model: in eval mode.
        input_shapes: shape of every float32 input with its batch dimension.

    Raises:
        LowerdeckError: torch.export cannot trace the model, with its reason.
    """
    import torch

    example_inputs = tuple(torch.zeros(*shape) for shape in input_shapes)
    try:
        with torch.no_grad(), shared_provenance():
            return torch.export.export(model.eval(), example_inputs)
    except Exception as error:  # user's code runs while tracing: anything may come out of it
        shapes = ", ".join(str(list(shape)) for shape in input_shapes)
        raise LowerdeckError(
            f"{type(model).__name__} cannot be exported with inputs of shape {shapes} (model.input_shapes): "
            f"{type(error).__name__}: {error}"
        ) from error
