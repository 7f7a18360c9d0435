"""What figures are made of: shares with their interval, signal to noise, and errors counted in LSBs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

Z_95 = 1.959963984540054
"""97.5 % quantile of the standard normal distribution: a two-sided interval that holds in 95 % of cases."""
IDENTICAL_DB = 200.0
"""Reported where there is no noise, in place of infinity, which JSON has not: beyond float64's own noise floor."""
LOW, HIGH = "_low", "_high"
"""What the names of an interval's ends add to the name of the share."""
_GRID_TOLERANCE_LSB = 0.01
"""Values of a 16-bit output, computed in float32, lie this near their step at least: what is nearer is on it."""


def wilson_interval(successes: int, trials: int) -> tuple[float, float]:
    """The 95 % interval of a share.

    Unlike the normal approximation it stays within 0 ... 1 and has a width where all trials succeed. Source: E. B.
    Wilson, "Probable Inference, the Law of Succession, and Statistical Inference", JASA 22 (1927), pages 209-212; in
    the form of L. D. Brown, T. T. Cai and A. DasGupta, "Interval Estimation for a Binomial Proportion", Statistical
    Science 16 (2001), equation 4.

    Args:
        successes: 0 <= successes <= trials.
        trials: At least one.
    """
    assert 0 <= successes <= trials, (successes, trials)
    assert trials > 0
    share, square = successes / trials, Z_95**2
    centre = (successes + square / 2) / (trials + square)
    half_width = Z_95 * math.sqrt(trials) / (trials + square) * math.sqrt(share * (1 - share) + square / (4 * trials))
    # At the ends rounding would leave 1e-17 where the formula gives 0 or 1.
    low = 0.0 if successes == 0 else max(0.0, centre - half_width)
    high = 1.0 if successes == trials else min(1.0, centre + half_width)
    return low, high


def paired_difference(first: npt.NDArray[np.bool_], second: npt.NDArray[np.bool_]) -> tuple[float, float, float]:
    """How much more often `first` is right than `second` on the same samples, with the ends of the 95 % interval.

    Pairs in which both are right or both wrong tell nothing of the difference, so that the interval is far narrower
    than those of the two shares. Source: D. G. Bonett and R. M. Price, "Adjusted Wald Confidence Interval for a
    Difference of Binomial Proportions Based on Paired Data", Journal of Educational and Behavioral Statistics 37
    (2012), pages 479-488.

    Args:
        first: bool [n], n > 0.
        second: bool [n].
    """
    trials = len(first)
    gains, losses = int((first & ~second).sum()), int((second & ~first).sum())
    gain, loss = (gains + 1) / (trials + 2), (losses + 1) / (trials + 2)
    half_width = Z_95 * math.sqrt((gain + loss - (gain - loss) ** 2) / (trials + 2))
    centre = gain - loss
    return (gains - losses) / trials, max(-1.0, centre - half_width), min(1.0, centre + half_width)


def share(name: str, hits: npt.NDArray[np.bool_]) -> dict[str, float]:
    """The share of samples that are hits, as `NAME`, and its 95 % interval, as `NAME_low` and `NAME_high`.

    Args:
        name: What is shared, e.g. `float_accuracy`.
        hits: bool [n], n > 0.
    """
    low, high = wilson_interval(int(hits.sum()), len(hits))
    return {name: float(hits.mean()), name + LOW: low, name + HIGH: high}


def sqnr_db(signal_power: float, noise_power: float) -> float:
    """10 log10(signal / noise), at most IDENTICAL_DB; 0 where there is no signal."""
    if not signal_power:
        return 0.0
    return min(10 * math.log10(signal_power / noise_power), IDENTICAL_DB) if noise_power else IDENTICAL_DB


def power(values: npt.NDArray[Any]) -> float:
    """Sum of squares."""
    return float(np.square(values.astype(np.float64)).sum())


def error_lsb(values: npt.NDArray[Any], reference: npt.NDArray[Any], lsb: float) -> npt.NDArray[np.float64]:
    """How many steps of the output's quantization each value is away from its reference, without sign.

    Args:
        values: Outputs, any shape.
        reference: The outputs that they should equal; same shape.
        lsb: One step, in units of the values.

    Returns:
        float64, same shape: whole numbers where both values lie on steps, and what it is elsewhere.
    """
    steps = np.abs(values.astype(np.float64) - reference.astype(np.float64)) / lsb
    whole = np.round(steps)
    error: npt.NDArray[np.float64] = np.where(np.abs(steps - whole) <= _GRID_TOLERANCE_LSB, whole, steps)
    return error
