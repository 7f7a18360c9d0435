"""Intervals of metrics without a closed form: the bootstrap over samples, as scipy computes it.

Draws depend on the number of samples alone. All programs and all builds that were evaluated on the same samples see the
same draws, so that their differences, draw by draw, are those of a paired bootstrap.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Measure = Callable[[Floats], Mapping[str, Floats]]
"""Weights of samples, float64 [b x n] -> metrics, float64 [b] each."""

MAX_DRAWS, MIN_DRAWS = 999, 99
_SAMPLES_DRAWN = 2_000_000
"""Bounds the time that many samples take: 999 draws of 2,000 samples, 99 of 20,000 and more."""
_WEIGHTS_AT_A_TIME = 4_000_000
"""Bounds the memory of the weights: 32 MB."""


def num_draws(num_samples: int) -> int:
    """How often `num_samples` are drawn."""
    return min(MAX_DRAWS, max(MIN_DRAWS, _SAMPLES_DRAWN // max(1, num_samples)))


def resampled(measure: Measure, num_samples: int) -> dict[str, Floats]:
    """The metrics of every draw, float64 [draws] each; empty for a single sample, which says nothing about others.

    Args:
        measure: Computes them from the weights of samples.
        num_samples: n.
    """
    from scipy.stats import DegenerateDataWarning

    names = sorted(measure(np.ones((1, num_samples)))) if num_samples > 1 else []
    if not names:
        return {}

    def statistic(rows: npt.NDArray[np.int64], axis: int = -1) -> Floats:
        flat = rows.reshape(-1, num_samples)
        weights = np.stack([np.bincount(row, minlength=num_samples) for row in flat]).astype(np.float64)
        found = measure(weights)
        return np.stack([found[name].reshape(rows.shape[:-1]) for name in names])

    # scipy warns of metrics that are the same in every draw, e.g. a share of 1; their interval is that value. It takes
    # the standard error of those that are infinite, too, which nobody reads.
    with warnings.catch_warnings(), np.errstate(invalid="ignore"):
        warnings.simplefilter("ignore", DegenerateDataWarning)
        done = _bootstrap(statistic, num_samples)
    return {name: np.asarray(done.bootstrap_distribution[index]) for index, name in enumerate(names)}


def _bootstrap(statistic: Any, num_samples: int) -> Any:
    from scipy.stats import bootstrap

    return bootstrap(
        (np.arange(num_samples),),
        statistic,
        vectorized=True,
        n_resamples=num_draws(num_samples),
        batch=max(1, _WEIGHTS_AT_A_TIME // num_samples),
        method="percentile",
        rng=np.random.default_rng(0),
    )


def interval(draws: Floats) -> tuple[float, float] | None:
    """The 95 % interval, 2.5th and 97.5th percentile; None where some draw is not finite."""
    if not np.isfinite(draws).all():
        return None
    low, high = np.percentile(draws, (2.5, 97.5))
    return float(low), float(high)


def differ(draws: Floats, other: Floats) -> bool | None:
    """Whether two builds on the same samples differ beyond noise: the paired 95 % interval excludes zero.

    None where the draws are not of equal samples, or some are not finite.
    """
    if draws.shape != other.shape:
        return None
    found = interval(draws - other)
    return None if found is None else found[0] > 0 or found[1] < 0
