"""Executes programs on float32 samples, whatever the element types of their inputs and outputs.

Samples are converted nowhere else: every measurement, including that of evaluate, uses this module.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.contracts.lowering import ProgramTensor
from lowerdeck.runtime.parallel_map import num_processors
from lowerdeck.runtime.program import HostProgram


def to_program(sample: torch.Tensor, tensor: ProgramTensor) -> torch.Tensor:
    """Convert `sample` for the input `tensor` of a program.

    Floats are quantized as by `quantized_decomposed.quantize_per_tensor`: multiplied by the scale's inverse, rounded
    half to even, shifted by the zero point, and saturated. Strides stay, because HostProgram accepts any.

    Args:
        sample: float32 [as tensor.shape, or smaller where it is dynamic].
        tensor: The input in the program's manifest.

    Raises:
        LowerdeckError: the input consists of integers without a scale.
    """
    dtype: torch.dtype = getattr(torch, tensor.dtype)
    if tensor.scale is None or tensor.zero_point is None:
        if dtype.is_floating_point != sample.dtype.is_floating_point:
            raise LowerdeckError(
                f"the program takes {tensor.dtype} as {tensor.name!r} without a scale, and the sample is "
                f"{str(sample.dtype).removeprefix('torch.')}: the manifest has no scale to convert it with"
            )
        return sample.to(dtype)
    shifted = torch.round(sample * (1.0 / tensor.scale)) + tensor.zero_point
    return torch.clamp(shifted, tensor.quant_min, tensor.quant_max).to(dtype)


def from_program(output: torch.Tensor, tensor: ProgramTensor) -> torch.Tensor:
    """The values of a program's output, described by `tensor`: float32 of the same shape, or integers as they are."""
    if tensor.scale is None or tensor.zero_point is None:
        return output.to(torch.float32) if output.is_floating_point() else output
    return (output.to(torch.float32) - tensor.zero_point) * tensor.scale


class FloatProgram:
    """A program on this host with float32 inputs and outputs."""

    def __init__(self, program: HostProgram, inputs: Sequence[ProgramTensor], outputs: Sequence[ProgramTensor]) -> None:
        """Wrap `program`, whose manifest describes `inputs` and `outputs` of its method `forward`."""
        self.program = program
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)

    @property
    def executor(self) -> str:
        """Name of the executor, e.g. `ExecuTorch runtime`."""
        return self.program.executor

    @property
    def num_processes(self) -> int:
        """Number of processes to evaluate with: host twins run in one thread, ExecuTorch's runtime in several."""
        return num_processors() if self.program.can_fork else 1

    def encode(self, samples: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Convert float32 inputs for the program.

        Raises:
            LowerdeckError: their number differs from that of the inputs, or one cannot be converted.
        """
        if len(samples) != len(self.inputs):
            raise LowerdeckError(f"the program takes {len(self.inputs)} inputs and got {len(samples)}")
        return tuple(to_program(sample, tensor) for sample, tensor in zip(samples, self.inputs, strict=True))

    def first_call(self, *samples: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The outputs of a program that was just loaded, so that samples may be executed in any order.

        Arguments and errors are those of a call.
        """
        self.program.reset()
        return self(*samples)

    def __call__(self, *samples: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The outputs for float32 inputs, as float32.

        Raises:
            LowerdeckError: the inputs do not fit the program, or an operator failed.
        """
        return self._decode(self.program(self.encode(samples)))

    def consecutive_calls(self, samples: Sequence[Sequence[torch.Tensor]]) -> list[tuple[torch.Tensor, ...]]:
        """The outputs of one call after the other of a program that was just loaded, host twins by their references.

        Arguments and errors are those of a call.
        """
        self.program.reset()
        return [self(*sample) for sample in samples]

    def calls(
        self, samples: Sequence[Sequence[torch.Tensor]], *, cross_check: Sequence[int] = ()
    ) -> list[tuple[torch.Tensor, ...]]:
        """The outputs of `first_call` for every sample, computed at once where that is possible.

        Args:
            samples: float32 inputs of each sample. Memory is taken for all of them.
            cross_check: Numbers of the samples for which to execute every partition by its reference as well.

        Raises:
            LowerdeckError: see a call, or the reference of a partition computes something else.
        """
        outputs = self.program.calls([self.encode(sample) for sample in samples], cross_check=cross_check)
        return [self._decode(each) for each in outputs]

    def _decode(self, outputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        return tuple(from_program(output, tensor) for output, tensor in zip(outputs, self.outputs, strict=True))
