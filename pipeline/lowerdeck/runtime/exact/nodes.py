"""What is known of an operator of a graph before its first execution."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from lowerdeck.formats.flatbuffer import Table

Key = TypeVar("Key", int, str)
Step = Callable[[Sequence[Tensor]], Tensor]
"""Computes an operator: its inputs [b x shape], or [1 x shape] where they are constants, -> its output [b x shape]."""


class UnsupportedGraphError(Exception):
    """A graph has an operator, attribute or element type that the executor lacks; the message names it."""


@dataclass(frozen=True)
class Operand:
    """A tensor of the graph."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    """TOSA's name, e.g. `int8`."""
    low: int
    """Lower bound of its values."""
    high: int
    """Upper bound of its values."""
    constant: Tensor | None = None
    """Its values where they do not depend on the inputs [1 x shape]."""

    def largest(self, zero_point: int = 0) -> int:
        """Upper bound of the absolute values, less `zero_point`."""
        return max(abs(self.low - zero_point), abs(self.high - zero_point))


@dataclass(frozen=True)
class Node:
    """An operator with its operands."""

    operator: str
    operands: tuple[Operand, ...]
    """Its inputs that are tensors."""
    sizes: tuple[tuple[int, ...] | None, ...]
    """For every input, its value where it is a shape; None for tensors."""
    output: Operand
    """Its bounds are those of its element type."""
    attribute: Table | None
    device: torch.device

    def unsupported(self, what: str) -> UnsupportedGraphError:
        """The error for something that is missing."""
        return UnsupportedGraphError(f"operator {self.operator} (tensor {self.output.name!r}) {what}")

    @property
    def attributes(self) -> Table:
        """Its attributes.

        Raises:
            ValueError: it has none.
        """
        if self.attribute is None:
            raise ValueError(f"operator {self.operator} (tensor {self.output.name!r}) lacks its attributes")
        return self.attribute

    def numbers(self, position: int) -> Tensor:
        """The values of the constant operand at `position` of `operands`, int64 [shape].

        Raises:
            UnsupportedGraphError: it is computed from the inputs.
        """
        operand = self._operand(position)
        if operand.constant is None:
            raise self.unsupported(f"takes input {position} from a computation; the executor needs a constant")
        return operand.constant[0].to(torch.int64)

    def number(self, position: int) -> int:
        """The value of a constant operand with one element."""
        numbers = self.numbers(position).flatten()
        if numbers.numel() != 1:
            raise ValueError(f"operator {self.operator} has {numbers.numel()} values as input {position}, not one")
        return int(numbers[0])

    def zero_point(self, position: int) -> int:
        """The zero point at `position`; 0 where the operator has none there."""
        return self.number(position) if position < len(self.operands) else 0

    def size(self, position: int) -> tuple[int, ...]:
        """The value of the input at `position` of `sizes`, a shape.

        Raises:
            UnsupportedGraphError: the shape is computed.
        """
        found = self.sizes[position] if position < len(self.sizes) else None
        if found is None:
            raise self.unsupported(f"takes a computed shape as input {position}")
        return found

    def _operand(self, position: int) -> Operand:
        if position >= len(self.operands):
            raise ValueError(f"operator {self.operator} has {len(self.operands)} inputs, not {position + 1}")
        return self.operands[position]


@dataclass(frozen=True)
class Prepared:
    """An operator that is ready for execution."""

    step: Step
    low: int | None = None
    """Lower bound of the results; None for that of the element type."""
    high: int | None = None


Prepare = Callable[[Node], Prepared]
"""Prepares an operator; raises UnsupportedGraphError where something is missing."""

TORCH_DTYPES = {
    "bool": torch.bool, "int4": torch.int8, "int8": torch.int8, "int16": torch.int16, "int32": torch.int32,
    "int48": torch.int64,
}  # fmt: skip
"""Element types of the executor; accumulators may also be floats that hold integers."""
RANGES = {
    "bool": (0, 1), "int4": (-(2**3), 2**3 - 1), "int8": (-(2**7), 2**7 - 1), "int16": (-(2**15), 2**15 - 1),
    "int32": (-(2**31), 2**31 - 1), "int48": (-(2**47), 2**47 - 1),
}  # fmt: skip


def integers(values: Tensor, dtype: torch.dtype) -> Tensor:
    """`values` in `dtype`, which holds them."""
    return values if values.dtype == dtype else values.to(dtype)


def last_reads(steps: Sequence[tuple[Sequence[Key], Key]], outputs: Sequence[Key]) -> list[tuple[Key, ...]]:
    """For every step, which it is the last to read of the values that steps compute.

    Args:
        steps: What each step reads, and what it computes, in order.
        outputs: Values that have to stay.
    """
    computed, seen, found = {target for _, target in steps}, set(outputs), []
    for sources, _ in reversed(steps):
        found.append(tuple(dict.fromkeys(key for key in sources if key not in seen and key in computed)))
        seen.update(found[-1])
    return found[::-1]
