"""How far a compiled partition, or a whole program, is from what it stands for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field


class ErrorUnit(StrEnum):
    """What an error is counted in."""

    LSB = "LSB"
    """Steps of the output's quantization."""
    RELATIVE = "of the largest value"
    """Fraction of the largest absolute value of the reference; for floats without a quantization."""
    SHARE = "of the values differ"
    """Share of elements that differ; for indices and booleans."""


_MOST_SENSITIVE = 4.0
"""Largest sensitivity at which the error of an output says something about single operators before it."""
NUM_CHECK_INPUTS = 4
"""Inputs of the model that calibrate keeps for comparisons."""


@dataclass(frozen=True, kw_only=True)
class OutputError:
    """Difference between one output and its reference, over all elements of all inputs that were tried.

    Of a quantized output for which other roundings were tried, of the input for which the depth explains least.
    """

    output: str
    """Node whose result it is."""
    max_error: float
    mean_error: float
    """Mean of the absolute errors of all elements."""
    unit: ErrorUnit
    bound: float
    """Largest `max_error` that rounding explains."""
    mean_bound: float
    """Largest `mean_error` that rounding explains."""
    sensitivity: float = 1.0
    """How many times the bounds are what the number of roundings explains: more than 1 where that is exceeded, and the
    reference itself, rounded in another way, differs by more."""
    unevenness: float = 0.0
    """Of a quantized output for which other roundings were tried, the largest mean error of some neighbouring elements,
    relative to what these roundings and the depth explain of the same elements."""

    @property
    def excess(self) -> float:
        """The error relative to its bound: above 1 where rounding does not explain it."""
        return max(self.max_error / self.bound, self.mean_error / self.mean_bound)

    @property
    def is_loose(self) -> bool:
        """Whether rounding may explain so large an error that a wrong operator could hide in it."""
        return self.sensitivity > _MOST_SENSITIVE or self.is_uneven

    @property
    def is_uneven(self) -> bool:
        """Whether rounding explains the error of all elements, but not that some of them have so much of it."""
        return self.unevenness > 1

    def __str__(self) -> str:
        return (
            f"{self.output} is off by up to {self.max_error:.3g} {self.unit} (mean {self.mean_error:.2g}; rounding "
            f"explains {self.bound:.3g})"
        )


@dataclass(frozen=True, kw_only=True)
class PartitionConformance:
    """Agreement of one compiled partition with the part of the edge program that it replaces, on the same inputs."""

    partition: str
    """Its tag in the delegation plan."""
    depth: int
    """Number of roundings in succession between its inputs and outputs."""
    outputs: tuple[OutputError, ...]
    """Errors by the first set of kernels that agrees with the subgraph, or by the first one."""
    kernels: Mapping[str, OutputError] = field(default_factory=dict)
    """The worst error by each set of kernels (LiteRT's resolvers) that can execute the host twin; empty where it offers
    no choice."""

    @property
    def wrong_kernels(self) -> Mapping[str, OutputError]:
        """Those of `kernels` that compute something else than the subgraph, while others agree with it."""
        wrong = {name: worst for name, worst in self.kernels.items() if worst.excess > 1}
        return wrong if len(wrong) < len(self.kernels) else {}

    @property
    def worst(self) -> OutputError:
        """The output with the largest error relative to its bound."""
        return max(self.outputs, key=lambda output: output.excess)

    @property
    def is_loose(self) -> bool:
        """Whether an output's error says nothing about single operators."""
        return any(output.is_loose for output in self.outputs)

    @property
    def is_uneven(self) -> bool:
        """Whether rounding does not explain where an output's error is."""
        return any(output.is_uneven for output in self.outputs)

    @property
    def conforms(self) -> bool:
        """Whether rounding explains every output's error."""
        return self.worst.excess <= 1


@dataclass(frozen=True, kw_only=True)
class ConformanceSettings:
    """How convert compares partitions with what they replace, and what follows."""

    on_mismatch: Literal["exclude", "warn", "fail"] = "exclude"
    """What to do where a partition differs by more than rounding explains: keep the operator to blame on the CPU, only
    mark the build, or fail."""
    num_samples: Annotated[int, Field(ge=1, le=NUM_CHECK_INPUTS)] = 2
    """Number of calibration samples to compare on, beside inputs that reach both ends of their ranges."""
    max_rounds: Annotated[int, Field(ge=0, le=1000)] = 8
    """Most times that operators are excluded and the program is lowered again."""
