"""The error of a quantized result: signal-to-noise ratio, and errors in LSBs."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

import numpy as np
import numpy.typing as npt

IDENTICAL_DB = 200.0
"""Reported instead of infinity, which JSON lacks, where there is no noise; beyond float64's noise floor."""

_GRID_TOLERANCE_LSB = 0.01
"""Values this close to a step count as on it, because 16-bit outputs are computed in float32."""


def sqnr_db(signal_power: float, noise_power: float) -> float:
    """10 log10(signal / noise), at most IDENTICAL_DB, as without noise; 0 for noise without a signal.

    -IDENTICAL_DB for noise that is not finite, as of values that overflow.
    """
    if not noise_power:
        return IDENTICAL_DB  # also of zeros, e.g. around an image
    if not math.isfinite(noise_power):
        return -IDENTICAL_DB
    return min(10 * math.log10(signal_power / noise_power), IDENTICAL_DB) if signal_power else 0.0


def power(values: npt.NDArray[Any]) -> float:
    """Sum of squares."""
    return float(np.square(values.astype(np.float64)).sum())


def error_lsb(values: npt.NDArray[Any], reference: npt.NDArray[Any], lsb: float) -> npt.NDArray[np.float64]:
    """The absolute difference of each value from its reference, in steps of the output's quantization.

    Args:
        values: Outputs, any shape.
        reference: The expected outputs; same shape.
        lsb: One step, in units of the values.

    Returns:
        float64, same shape: whole numbers where both values lie on steps.
    """
    steps = np.abs(values.astype(np.float64) - reference.astype(np.float64)) / lsb
    whole = np.round(steps)
    error: npt.NDArray[np.float64] = np.where(np.abs(steps - whole) <= _GRID_TOLERANCE_LSB, whole, steps)
    return error


def masked_in_both(values: Any, reference: Any, numbers: Collection[tuple[float, float]]) -> Any:
    """Where two outputs both have a mask's number: what a mask leaves out says nothing of what it keeps.

    Args:
        values: An array or a tensor of floats, any shape.
        reference: What it is compared with; same type and shape.
        numbers: Those that masks leave, and by which share of them an element may be off; other elements are kept.

    Returns:
        Booleans, same shape.
    """
    masked = (reference > 0) & (reference < 0)
    for number, share in numbers:
        masked = masked | (_is_number(values, number, share) & _is_number(reference, number, share))
    return masked


def _is_number(values: Any, number: float, share: float) -> Any:
    if math.isinf(number):
        return values == number
    margin = share * abs(number)
    return (values >= number - margin) & (values <= number + margin)
