"""Changes of the exported shapes that the tool can try: one sample at a time, fixed sizes, another height and width."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True, kw_only=True)
class ShapeChange:
    """What becomes of `model.input_shapes` and `model.dynamic_shapes`."""

    is_batch_of_one: bool = False
    """Whether the first size of every input becomes 1."""
    is_fixed: bool = False
    """Whether no dimension varies any more."""
    sides: tuple[Fraction, Fraction] = (Fraction(1), Fraction(1))
    """Factors of height and width of inputs with four dimensions."""

    def applied(self, input_shapes: Sequence[Sequence[int]]) -> list[list[int]]:
        """The shapes of all inputs, changed."""
        return [self._shape(list(shape)) for shape in input_shapes]

    def _shape(self, shape: list[int]) -> list[int]:
        if self.is_batch_of_one and shape:
            shape[0] = 1
        if len(shape) == 4:
            shape[2:] = [max(1, round(size * factor)) for size, factor in zip(shape[2:], self.sides, strict=True)]
        return shape


BATCH_OF_ONE = ShapeChange(is_batch_of_one=True)
FIXED_SIZES = ShapeChange(is_fixed=True)
