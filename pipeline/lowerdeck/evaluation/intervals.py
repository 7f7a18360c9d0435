"""Shares of samples and medians with their 95 % intervals, and differences of shares."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Z_95 = 1.959963984540054
"""97.5 % quantile of the standard normal distribution, for two-sided 95 % intervals."""

LOW, HIGH = "_low", "_high"
"""Suffixes of the names of an interval's ends."""


def wilson_interval(successes: int, trials: int) -> tuple[float, float]:
    """The 95 % interval of a share.

    Unlike the normal approximation it stays within 0 ... 1 and is not empty where all trials succeed. Source: E. B.
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
    root = math.sqrt(share * (1 - share) + square / (4 * trials))
    half_width = Z_95 * math.sqrt(trials) / (trials + square) * root
    # Rounding would leave 1e-17 where the formula gives exactly 0 or 1.
    low = 0.0 if successes == 0 else max(0.0, centre - half_width)
    high = 1.0 if successes == trials else min(1.0, centre + half_width)
    return low, high


def median_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % interval of a median, from the order of the values alone: times are not normally distributed.

    The number of values below the median is binomial with share 1/2; the interval lies between the two values of equal
    rank from either end that leave at most 2.5 % outside on each side. Source: H. A. David and H. N. Nagaraja, "Order
    Statistics", 3rd edition (2003), section 7.1.

    Args:
        values: In any order; they have to be independent.

    Returns:
        None where fewer than six values allow no such interval.
    """
    ordered, count = sorted(values), len(values)
    rank, below, log_share = 0, 0.0, -count * math.log(2)
    while (below := below + math.exp(log_share)) <= 0.025:
        # The next binomial share by its logarithm: the numbers themselves have as many bits as there are values.
        log_share += math.log((count - rank) / (rank + 1))
        rank += 1
    return (ordered[rank - 1], ordered[count - rank]) if rank else None


def paired_difference(first: npt.NDArray[np.bool_], second: npt.NDArray[np.bool_]) -> tuple[float, float, float]:
    """How much more often `first` is right than `second` on the same samples, with the ends of the 95 % interval.

    Pairs in which both are right or both wrong do not affect the difference, so the interval is far narrower than those
    of the two shares. Source: D. G. Bonett and R. M. Price, "Adjusted Wald Confidence Interval for a
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


def share_with_interval(name: str, hits: npt.NDArray[np.bool_]) -> dict[str, float]:
    """The share of samples that are hits, as `NAME`, and its 95 % interval, as `NAME_low` and `NAME_high`.

    Args:
        name: Name of the share, e.g. `float_accuracy`.
        hits: bool [n], n > 0.
    """
    low, high = wilson_interval(int(hits.sum()), len(hits))
    return {name: float(hits.mean()), name + LOW: low, name + HIGH: high}
