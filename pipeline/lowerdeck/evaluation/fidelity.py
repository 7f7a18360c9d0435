"""How faithful the outputs of one program are to those of another, whatever they mean.

Errors of a sample are reduced to a few sums, from which every metric of all samples follows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from lowerdeck.evaluation.quantization_error import IDENTICAL_DB, error_lsb, masked_in_both

PAIRS = {
    "quantized": ("quantized", "float"),
    "delegated": ("delegated", "float"),
    "delegated_against_quantized": ("delegated", "quantized"),
}
"""Prefix of metrics -> (program, the program that it is compared with)."""
ERRORS_OF = {"quantized": "quantized", "delegated": "delegated_against_quantized"}
"""Program -> the pair of its errors in steps: each is compared with the program that it was made from."""


def records(
    values: npt.NDArray[Any],
    reference: npt.NDArray[Any],
    lsb: float | None,
    masked_numbers: Collection[tuple[float, float]] = (),
) -> dict[str, npt.NDArray[Any]]:
    """The sums of several samples; those of each do not depend on the others, to the last bit.

    Values that are equal have no error, NaN and infinities included; a value that is finite on one side alone has an
    infinite one. Elements with a mask's number in both are left out: the power of -1e9 would hide every loss.

    Args:
        values: The output of one program, any dtype [b x ...], b > 0.
        reference: That of the other; same shape.
        lsb: One step of the output's quantization; None to leave errors in units of the output.
        masked_numbers: Those that masks leave in place of elements, as in `OutputSpec`.

    Returns:
        float64 [b]: `signal` and `noise` as powers, `cosine` (1 where both are zero, 0 where an error is infinite),
        `error_sum`, `error_max`, and `exact` among `count` elements, without those left out: `masked`.
    """
    given, expected = (np.array(each, dtype=np.float64).reshape(len(each), -1) for each in (values, reference))
    masked = masked_in_both(given, expected, masked_numbers)
    if masked_numbers:
        given, expected = np.where(masked, 0.0, given), np.where(masked, 0.0, expected)
    left_out = masked.sum(axis=1)
    finite = np.isfinite(given) & np.isfinite(expected)
    all_finite = bool(finite.all())
    lost = np.isfinite(expected) & ~finite
    one, other = (given, expected) if all_finite else (np.where(finite, given, 0.0), np.where(finite, expected, 0.0))
    difference = one - other
    error = error_lsb(one, other, lsb) if lsb else np.abs(difference)
    if not all_finite:
        same = (given == expected) | (np.isnan(given) & np.isnan(expected))
        error = np.where(same, 0.0, np.where(finite, error, np.inf))
        difference = np.where(same, 0.0, np.where(finite, difference, np.inf))
    signal = np.square(other).sum(axis=1)
    length = np.sqrt(np.square(one).sum(axis=1) * signal)
    products = np.matmul(one[:, np.newaxis, :], other[:, :, np.newaxis])[:, 0, 0]  # sums as in `one @ other` of a row
    both_zero = ~one.any(axis=1) & ~other.any(axis=1)
    cosine = np.divide(products, length, out=both_zero.astype(np.float64), where=length != 0)
    sums = {
        "signal": signal,
        "noise": np.square(difference).sum(axis=1),
        "cosine": np.where(np.isinf(error).any(axis=1), 0.0, cosine),
        "error_sum": error.sum(axis=1),
        "error_max": error.max(axis=1, initial=0.0),
        "exact": (error == 0).sum(axis=1) - left_out,
        "count": error.shape[1] - left_out,
        "masked": left_out,
        "lost": lost.sum(axis=1),
    }
    return {name: value.astype(np.float64) for name, value in sums.items()}


def measure(
    records: Mapping[str, npt.NDArray[Any]], weights: npt.NDArray[np.float64]
) -> dict[str, npt.NDArray[np.float64]]:
    """`sqnr_db`, `cosine` (the mean over samples), `error_max`, `error_mean` and `exact_share`.

    Args:
        records: Those of `records`, each [n].
        weights: float64 [b x n], how often each sample counts.

    Returns:
        float64 [b] each; NaN where masks leave nothing of any sample, and thus nothing is said of the output.
    """
    is_left = (records["count"] > 0) | (records["masked"] == 0)
    is_any_left = weights @ is_left > 0
    with np.errstate(divide="ignore", invalid="ignore"):
        noise = _weighted(weights, records["noise"])
        signal = weights @ records["signal"]
        decibels = np.where(signal > 0, np.clip(10 * np.log10(signal / noise), -IDENTICAL_DB, IDENTICAL_DB), 0.0)
        sqnr = np.where(noise > 0, decibels, IDENTICAL_DB)
        count = np.maximum(weights @ records["count"], 1.0)
        errors = _weighted(weights, records["error_sum"])
    found = {
        "sqnr_db": sqnr,
        "cosine": (weights @ (records["cosine"] * is_left)) / np.maximum(weights @ is_left, 1.0),
        "error_max": np.where(weights > 0, records["error_max"], 0.0).max(axis=1),
        "error_mean": errors / count,
        "exact_share": np.where(weights @ records["count"] > 0, (weights @ records["exact"]) / count, 1.0),
    }
    return {name: np.where(is_any_left, values, np.nan) for name, values in found.items()}


def _weighted(weights: npt.NDArray[np.float64], values: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """The sum of the values of each draw, float64 [b]; an infinite one counts only where it was drawn."""
    weighted = weights * values
    if not np.isfinite(values).all():
        weighted = np.where(weights > 0, weighted, 0.0)
    sums: npt.NDArray[np.float64] = weighted.sum(axis=1)
    return sums
