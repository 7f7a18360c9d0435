"""Step export: a PyTorch model -> ATen exported program."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from lowerdeck.compat.fast_graph_passes import fast_graph_passes
from lowerdeck.contracts.backends import DynamicDimension, MemoryFormat
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.graph.dynamic_shapes import traced_shapes, try_sizes, violations
from lowerdeck.graph.memory_formats import to_memory_format

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram


def export(
    model: torch.nn.Module,
    input_shapes: Sequence[Sequence[int]],
    dynamic_dimensions: Sequence[DynamicDimension] = (),
    memory_format: MemoryFormat | None = None,
    input_dtypes: Sequence[str] = (),
    sequences_as_images: bool = False,
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

    Raises:
        LowerdeckError: torch.export cannot trace the model, the model rejects some sizes, returns other things than
            tensors in containers, keeps state outside of buffers, calls operators of torchvision, computes with
            complex numbers, or pools in a way that ExecuTorch does not have; the message has the reason, and what to
            change.
    """
    import torch

    from lowerdeck.graph.export_checks import check_no_hidden_state, written_attributes
    from lowerdeck.graph.tracing import trace

    shapes_to_trace, dynamic_shapes = traced_shapes(input_shapes, dynamic_dimensions)
    dtypes = [getattr(torch, name) for name in input_dtypes] or [torch.float32] * len(shapes_to_trace)
    zeros = tuple(torch.zeros(shape, dtype=dtype) for shape, dtype in zip(shapes_to_trace, dtypes, strict=True))
    example_inputs = to_memory_format(zeros, memory_format or "contiguous")
    sample = _sample(shapes_to_trace, dtypes)
    weights = _weight_dtypes(model)
    mixed = {dtype for dtype in dtypes if dtype.is_floating_point} - weights if weights else None
    try:
        with torch.no_grad(), fast_graph_passes():
            program = trace(
                model.eval(), example_inputs, dynamic_shapes, memory_format or "contiguous", sequences_as_images
            )
        check_no_hidden_state(model, written_attributes(model, sample), program, sample)
        if mixed:
            _check_dtypes(program, sample)
        found = try_sizes(program, dynamic_dimensions) if dynamic_dimensions else None
    except LowerdeckError:
        raise
    except Exception as error:  # the user's code, which tracing runs, may raise anything
        found = violations(error, dynamic_dimensions)
        if found is None:
            described = [
                f"{list(shape)}{'' if dtype == torch.float32 else f' {str(dtype).removeprefix(_TORCH)}'}"
                for shape, dtype in zip(shapes_to_trace, dtypes, strict=True)
            ]
            message = _export_error_message(model, described, dynamic_dimensions, error)
            if mixed and "type" in str(error):
                message += _dtype_advice(mixed, weights)
            raise LowerdeckError(message) from error
    if found is not None:
        raise LowerdeckError(f"{type(model).__name__} does not take all sizes of model.dynamic_shapes:\n{found}")
    return program


def _weight_dtypes(model: torch.nn.Module) -> set[torch.dtype]:
    return {parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()}


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


_TORCH = "torch."
_DATA_DEPENDENT = ("data-dependent", "DataDependent", "Dynamic control flow")


def _summary(error: Exception) -> str:
    """The first line of a message, and the line of the model's code where it has one."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    caused = next((line for line in lines if line.startswith("Caused by:")), None)
    return ". ".join(filter(None, (lines[0] if lines else type(error).__name__, caused)))


def _dtype_advice(inputs: Collection[torch.dtype], weights: Collection[torch.dtype]) -> str:
    given, stored = (", ".join(sorted(str(each).removeprefix(_TORCH) for each in part)) for part in (inputs, weights))
    return (
        f"\nInputs are {given} (model.input_dtypes; float32 where it is empty), and the model's weights {stored}. Set "
        f"model.input_dtypes to {stored}, convert the weights in the model's factory, e.g. `.bfloat16()`, or cast "
        "inputs in forward, `x.to(self.weight.dtype)`"
    )


def _export_error_message(
    model: torch.nn.Module,
    inputs: Sequence[str],
    dynamic_dimensions: Sequence[DynamicDimension],
    error: Exception,
) -> str:
    listed = ", ".join(inputs)
    message = f"{type(model).__name__} cannot be exported with inputs of shape {listed} (model.input_shapes"
    if any(sign in f"{type(error).__name__} {error}" for sign in _DATA_DEPENDENT):
        return (
            f"{message}): its control flow depends on the values of tensors, and a program has one flow for all: "
            f"{_summary(error)}\nWrite torch.where or torch.cond instead of `if`, and a fixed number of rounds instead "
            "of `while`, or wrap the model in a module whose forward calls only the parts without such decisions, and "
            "name that module as model.options.factory"
        )
    if not dynamic_dimensions:
        return f"{message}): {type(error).__name__}: {error}"
    advice = "If varying sizes are the cause, narrow them, or set multiple_of to the model's divisor of them"
    return f"{message} and model.dynamic_shapes): {type(error).__name__}: {error}\n{advice}"
