"""Executes programs on float32 samples, whatever the element types of their inputs and outputs.

The only place where samples are converted: evaluate and everything else that measures goes through it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.contracts.lowering import ProgramTensor
from lowerdeck.runtime.parallel_map import num_processors
from lowerdeck.runtime.program import HostProgram


def to_program(sample: torch.Tensor, tensor: ProgramTensor) -> torch.Tensor:
    """`sample` converted for the input `tensor` of a program.

    Floats become integers as `quantized_decomposed.quantize_per_tensor` makes them: multiplied by the scale's inverse,
    rounded half to even, shifted by the zero point, saturated. Strides are kept: HostProgram takes any.

    Args:
        sample: float32 [as tensor.shape, or smaller where it is dynamic].
        tensor: The input in the program's manifest.

    Raises:
        LowerdeckError: the program takes integers there without a scale.
    """
    dtype: torch.dtype = getattr(torch, tensor.dtype)
    if tensor.scale is None or tensor.zero_point is None:
        if dtype.is_floating_point != sample.dtype.is_floating_point:
            raise LowerdeckError(
                f"the program takes {tensor.dtype} as {tensor.name!r} without a scale, and the sample is "
                f"{str(sample.dtype).removeprefix('torch.')}: the manifest does not say how to convert them"
            )
        return sample.to(dtype)
    shifted = torch.round(sample * (1.0 / tensor.scale)) + tensor.zero_point
    return torch.clamp(shifted, tensor.quant_min, tensor.quant_max).to(dtype)


def from_program(answer: torch.Tensor, tensor: ProgramTensor) -> torch.Tensor:
    """The value of the output `tensor` of a program, as float32 of the same shape."""
    if tensor.scale is None or tensor.zero_point is None:
        return answer.to(torch.float32)
    return (answer.to(torch.float32) - tensor.zero_point) * tensor.scale


class FloatProgram:
    """A program on this host that takes and gives float32."""

    def __init__(self, program: HostProgram, inputs: Sequence[ProgramTensor], outputs: Sequence[ProgramTensor]) -> None:
        """Wrap `program`.

        Args:
            program: The program that executes.
            inputs: Inputs of its method `forward`, from its manifest.
            outputs: Its outputs, from the manifest.
        """
        self.program = program
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)

    @property
    def executor(self) -> str:
        """Name of the executor, e.g. `ExecuTorch runtime`."""
        return self.program.executor

    @property
    def num_processes(self) -> int:
        """Number of processes to evaluate it with: host twins run in one thread, ExecuTorch's runtime in several."""
        return num_processors() if self.program.can_fork else 1

    def encode(self, samples: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """float32 inputs as the program takes them.

        Raises:
            LowerdeckError: there are more or fewer than it takes, or one cannot be represented.
        """
        if len(samples) != len(self.inputs):
            raise LowerdeckError(f"the program takes {len(self.inputs)} inputs and was given {len(samples)}")
        return tuple(to_program(sample, tensor) for sample, tensor in zip(samples, self.inputs, strict=True))

    def __call__(self, *samples: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Outputs as float32.

        Args:
            samples: float32 inputs in order.

        Raises:
            LowerdeckError: the inputs do not fit the program, or an operator failed.
        """
        answers = self.program(self.encode(samples))
        return tuple(from_program(answer, tensor) for answer, tensor in zip(answers, self.outputs, strict=True))


__all__ = ["FloatProgram", "from_program", "to_program"]
