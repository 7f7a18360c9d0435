"""Inputs of the self-test program and the outputs that they must give."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

PROGRAM = Path(__file__).with_name("program.pte")
SHAPE = (1, 16)


def samples(number: int = 2) -> list[tuple[torch.Tensor, ...]]:
    """Small integers as float32 [1 x 16], of which all results are exact."""
    import torch

    return [(torch.arange(16, dtype=torch.float32).reshape(SHAPE) - 8 + index,) for index in range(number)]


def outputs(sample: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """float32 [1 x 16]: x * x + x."""
    return (sample[0] * sample[0] + sample[0],)
