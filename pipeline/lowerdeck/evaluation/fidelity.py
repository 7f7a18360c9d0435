"""How faithful the outputs of one program are to those of another, whatever they mean.

Errors of a sample are reduced to a few sums, from which every metric of all samples follows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from lowerdeck.evaluation.quantization_error import IDENTICAL_DB, error_lsb

PAIRS = {
    "quantized": ("quantized", "float"),
    "delegated": ("delegated", "float"),
    "delegated_against_quantized": ("delegated", "quantized"),
}
"""Prefix of metrics -> (program, the program that it is compared with)."""
ERRORS_OF = {"quantized": "quantized", "delegated": "delegated_against_quantized"}
"""Program -> the pair of its errors in steps: each is compared with the program that it was made from."""


def record(values: npt.NDArray[Any], reference: npt.NDArray[Any], lsb: float | None) -> dict[str, npt.NDArray[Any]]:
    """The sums of one sample.

    Values that are equal have no error, NaN and infinities included; a value that is finite on one side alone has an
    infinite one.

    Args:
        values: The output of one program, any shape and dtype.
        reference: That of the other; same shape.
        lsb: One step of the output's quantization; None to leave errors in units of the output.

    Returns:
        float64 scalars: `signal` and `noise` as powers, `cosine` (1 where both are zero), `error_sum`, `error_max`,
        and `exact` among `count` elements.
    """
    given, expected = values.astype(np.float64).ravel(), reference.astype(np.float64).ravel()
    finite = np.isfinite(given) & np.isfinite(expected)
    all_finite = bool(finite.all())
    one, other = (given, expected) if all_finite else (np.where(finite, given, 0.0), np.where(finite, expected, 0.0))
    error, difference = np.zeros_like(one), one - other
    if len(one):
        error = error_lsb(one, other, lsb) if lsb else np.abs(difference)
    if not all_finite:
        same = (given == expected) | (np.isnan(given) & np.isnan(expected))
        error = np.where(same, 0.0, np.where(finite, error, np.inf))
        difference = np.where(same, 0.0, np.where(finite, difference, np.inf))
    length = float(np.sqrt(np.square(one).sum() * np.square(other).sum()))
    both_zero = not one.any() and not other.any()
    sums = {
        "signal": np.square(other).sum(),
        "noise": np.square(difference).sum(),
        "cosine": float(one @ other) / length if length else float(both_zero),
        "error_sum": error.sum(),
        "error_max": error.max(initial=0.0),
        "exact": (error == 0).sum(),
        "count": len(error),
    }
    return {name: np.array(value, dtype=np.float64) for name, value in sums.items()}


def measure(
    records: Mapping[str, npt.NDArray[Any]], weights: npt.NDArray[np.float64]
) -> dict[str, npt.NDArray[np.float64]]:
    """`sqnr_db`, `cosine` (the mean over samples), `error_max`, `error_mean` and `exact_share`.

    Args:
        records: Those of `record`, each [n].
        weights: float64 [b x n], how often each sample counts.

    Returns:
        float64 [b] each.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        noise = np.where(weights > 0, weights * records["noise"], 0.0).sum(axis=1)
        signal = weights @ records["signal"]
        decibels = np.where(noise > 0, 10 * np.log10(signal / noise), IDENTICAL_DB)
        sqnr = np.where(signal > 0, np.clip(decibels, -IDENTICAL_DB, IDENTICAL_DB), 0.0)
        count = np.maximum(weights @ records["count"], 1.0)
        errors = np.where(weights > 0, weights * records["error_sum"], 0.0).sum(axis=1)
    return {
        "sqnr_db": sqnr,
        "cosine": (weights @ records["cosine"]) / weights.sum(axis=1),
        "error_max": np.where(weights > 0, records["error_max"], 0.0).max(axis=1),
        "error_mean": errors / count,
        "exact_share": (weights @ records["exact"]) / count,
    }
