"""Memory formats of a program's inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowerdeck.contracts.backends import MemoryFormat

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram

_CHANNELS_LAST = (0, 2, 3, 1)


def to_memory_format(inputs: tuple[torch.Tensor, ...], memory_format: MemoryFormat) -> tuple[torch.Tensor, ...]:
    """`inputs` in `memory_format`, where channels_last applies to those of shape [n x c x h x w].

    Shapes and values stay. For `contiguous` the inputs are returned unchanged.
    """
    import torch

    if memory_format == "contiguous":
        return inputs
    return tuple(tensor.to(memory_format=torch.channels_last) if tensor.ndim == 4 else tensor for tensor in inputs)


def memory_format_of(program: ExportedProgram) -> MemoryFormat:
    """The memory format that `program` was exported with."""
    assert program.example_inputs is not None
    examples = program.example_inputs[0]
    return "channels_last" if any(tensor.dim_order() == _CHANNELS_LAST for tensor in examples) else "contiguous"
