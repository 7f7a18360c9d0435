"""Quantities of an output, such as a pressure beside a humidity, of whose variation one scale for all leaves nothing.

The ratio of the whole output does not show them: the largest quantity, or the means of all, are most of its signal.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from lowerdeck.evaluation.quantization_error import sqnr_db

_MOST_QUANTITIES = 16
"""More indices are classes, features or places, of which some hardly vary and need not: corners of images of digits."""
_SMALL = 1 / 16
"""Share of the largest deviation, or of a mean, to which 8 bits for both leave less than 4. Scores of classifiers with
random weights all vary by less than a step, but about as much; those of the trained ResNet-8 are 13 times apart at
most, on any four of its samples that were tried."""
_ROUNDING = 12.0
"""The squared step of a quantization, divided by the mean square of what rounding changes."""
_FLOAT_NOISE = 1e-5
"""Share of a value by which float32 may be off after a few hundred additions."""


class LostQuantities(NamedTuple):
    """What varies in an output by too little for the steps of its scale, as by less than one, and is lost.

    Attributes:
        sqnr_db: Variation to variation of the error, the least of all that is lost.
        dims: Dimension of the output that has the quantities; both of a square matrix, whose elements are such.
        deviations: The standard deviation of each lost one by its indices in these dimensions, in units of the output;
            of none where all of the output lies far from 0.
        beside: The largest deviation in the same dimensions; of all of the output the mean.
    """

    sqnr_db: float
    dims: tuple[int, ...]
    deviations: dict[tuple[int, ...], float]
    beside: float

    @property
    def way_out(self) -> str:
        """What to change in the model so that nothing is lost."""
        if not self.deviations:
            return f"to add its mean, {self.beside:.4g}, outside of the program, because it needs too large steps"
        of_matrix = len(self.dims) > 1
        lost = ", ".join(
            f"{list(index) if of_matrix else index[0]} (by {deviation:.2g})"
            for index, deviation in self.deviations.items()
        )
        return (
            f"to return {f'element {lost}' if of_matrix else f'index {lost} of dimension {self.dims[0]}'}, too little "
            f"for the steps of others that vary by up to {self.beside:.2g}, as an output of its own, of a layer of its "
            "own, or to train on normalized quantities and undo that outside of the program"
        )


def lost_quantities(
    outputs: Sequence[tuple[torch.Tensor, torch.Tensor]], lsb: float, batch: int, least_sqnr_db: float
) -> LostQuantities | None:
    """What an output loses because one scale serves quantities of which others vary more, or have a mean far from 0.

    Args:
        outputs: The expected and the actual output, float64 of one shape, for each sample.
        lsb: Step of the output's quantization, or of what it is computed of in float, in its units.
        batch: Size of the first dimension of the model's inputs, which is none of the output's quantities.
        least_sqnr_db: What varies with less is lost.

    Returns:
        What is lost in the dimension in which deviations differ most; None where nothing is.
    """
    expected, actual = (torch.stack(each).nan_to_num(0.0, 0.0, 0.0) for each in zip(*outputs, strict=True))
    found = [_Along.of(expected, actual, dims) for dims in _dimensions(expected.shape[1:], batch)]
    found = [each for each in found if each.deviations.any()]
    if not found:
        return None
    along = min(found, key=_Along.spread)
    return along.lost(lsb, least_sqnr_db) or along.lost_as_a_whole(lsb, least_sqnr_db)


def _dimensions(shape: Sequence[int], batch: int) -> list[tuple[int, ...]]:
    """Those that may have quantities: no places of maps, whose edges vary less without being quantities.

    Small square matrices are poses, homographies and intrinsics of cameras rather than maps.
    """
    last = len(shape) - 1
    is_square = last in (1, 2) and 1 < shape[-2] == shape[-1] and (last == 2 or shape[0] != batch)
    dims: list[tuple[int, ...]]
    if is_square:
        dims = [(last - 1, last)]
    elif last > 2:
        dims = [(last if shape[-3] == shape[-2] != shape[-1] else 1,)]
    elif last == 2:
        dims = [(1,), (2,)]
    else:
        dims = [(last,)] if last == 1 or (last == 0 and not 1 < batch == shape[0]) else []
    return [each for each in dims if math.prod(shape[dim] for dim in each) <= _MOST_QUANTITIES]


class _Along(NamedTuple):
    """An output by the indices of one dimension, or by the elements of a matrix.

    Attributes:
        dims: The dimension, or both of the matrix.
        sizes: Theirs; `indices` is the product of these.
        expected: Float64 of shape [indices, values].
        signals: Variance of each index, shape [indices].
        noises: Variance of its error, same shape.
    """

    dims: tuple[int, ...]
    sizes: tuple[int, ...]
    expected: torch.Tensor
    signals: torch.Tensor
    noises: torch.Tensor

    @classmethod
    def of(cls, expected: torch.Tensor, actual: torch.Tensor, dims: tuple[int, ...]) -> _Along:
        sizes = tuple(expected.shape[dim + 1] for dim in dims)
        moved = (each.movedim([dim + 1 for dim in dims], list(range(len(dims)))) for each in (expected, actual))
        wanted, given = (each.reshape(math.prod(sizes), -1) for each in moved)
        signals, noises = (each.var(1, correction=0) for each in (wanted, wanted - given))
        # What varies by no more than float32 is off does not vary.
        varies = signals.sqrt() > _FLOAT_NOISE * wanted.abs().amax(1)
        return cls(dims, sizes, wanted, signals.where(varies, 0.0), noises)

    @property
    def deviations(self) -> torch.Tensor:
        return self.signals.sqrt()

    def spread(self) -> float:
        """The least deviation above 0, as a share of the largest."""
        deviations = self.deviations
        return float(deviations[deviations > 0].min() / deviations.max())

    def lost(self, lsb: float, least_sqnr_db: float) -> LostQuantities | None:
        largest = float(self.deviations.max())
        lost = {
            index: sqnr_db(*powers)
            for index, powers in enumerate(zip(self.signals.tolist(), self.noises.tolist(), strict=True))
            if 0 < math.sqrt(powers[0]) < _SMALL * largest and self._is_varying(index)
            if _is_lost(*powers, lsb, least_sqnr_db)
        }
        if not lost:
            return None
        indices = list(itertools.product(*map(range, self.sizes)))
        deviations = {indices[at]: float(self.deviations[at]) for at in lost}
        return LostQuantities(min(lost.values()), self.dims, deviations, largest)

    def _is_varying(self, index: int) -> bool:
        """Whether it is no channel or mask that has one value almost everywhere, which then is its median."""
        values = self.expected[index]
        return int((values == values.median()).sum()) <= values.numel() / 2

    def lost_as_a_whole(self, lsb: float, least_sqnr_db: float) -> LostQuantities | None:
        """Such as a pressure of 1013 +- 1. Up to 1 are probabilities, and what networks of random weights return."""
        low, high = (float(each) for each in self.expected.aminmax())
        nearest = max(low, -high)
        signal, noise = float(self.signals.mean()), float(self.noises.mean())
        if nearest <= 1 or high - low > _SMALL * nearest or not _is_lost(signal, noise, lsb, least_sqnr_db):
            return None
        return LostQuantities(sqnr_db(signal, noise), self.dims, {}, float(self.expected.mean()))


def _is_lost(signal: float, noise: float, lsb: float, least_sqnr_db: float) -> bool:
    """Whether too little is left, of which rounding to the steps of the output alone would leave too little."""
    return max(sqnr_db(signal, noise), sqnr_db(signal, lsb**2 / _ROUNDING)) < least_sqnr_db
