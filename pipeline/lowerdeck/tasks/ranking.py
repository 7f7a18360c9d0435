"""Metrics of scores that rank samples, for many weightings of the samples at once.

They equal scikit-learn's with `sample_weight`, which would be called a thousand times for an interval. Scores that are
NaN, which scikit-learn refuses, count as the worst: the highest of negative samples, and the lowest of positive ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def average_precision(positive: npt.NDArray[np.bool_], scores: Floats, weights: Floats) -> Floats:
    """sklearn.metrics.average_precision_score, float64 [b]; NaN without positive samples.

    Args:
        positive: bool [n].
        scores: float64 [n], higher for positive samples.
        weights: float64 [b x n].
    """
    true, false = _cumulated(positive, scores, weights)
    with np.errstate(divide="ignore", invalid="ignore"):
        precision = np.where(true + false > 0, true / (true + false), 0.0)
        recall = true / true[:, -1:]
        area: Floats = (np.diff(recall, axis=1, prepend=0.0) * precision).sum(axis=1)
    return area


def roc_auc(positive: npt.NDArray[np.bool_], scores: Floats, weights: Floats, max_fpr: float = 1.0) -> Floats:
    """sklearn.metrics.roc_auc_score, with `max_fpr` below 1 its standardized partial area; NaN without both kinds.

    Args:
        positive: bool [n].
        scores: float64 [n].
        weights: float64 [b x n].
        max_fpr: Highest rate of false positives that counts. Source of the standardization: D. K. McClish, "Analyzing a
            Portion of the ROC Curve", Medical Decision Making 9 (1989), pages 190-195.
    """
    false_rate, true_rate = _rates(positive, scores, weights)
    limit = np.clip(false_rate, 0.0, max_fpr)
    step = np.diff(limit, axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        slope = np.diff(true_rate, axis=1) / np.diff(false_rate, axis=1)
        height = np.where(step > 0, true_rate[:, :-1] + np.nan_to_num(slope, posinf=0.0) * step / 2, 0.0)
    area: Floats = (step * height).sum(axis=1)
    if max_fpr < 1:
        least, most = 0.5 * max_fpr**2, max_fpr
        area = 0.5 * (1 + (area - least) / (most - least))
    return np.where(np.isfinite(false_rate[:, -1]) & np.isfinite(true_rate[:, -1]), area, np.nan)


def recall_at(positive: npt.NDArray[np.bool_], scores: Floats, weights: Floats, max_fpr: float) -> Floats:
    """The highest share of positive samples above a threshold that at most `max_fpr` of the others pass."""
    false_rate, true_rate = _rates(positive, scores, weights)
    found: Floats = np.where(false_rate <= max_fpr, true_rate, 0.0).max(axis=1)
    return np.where(np.isfinite(false_rate[:, -1]) & np.isfinite(true_rate[:, -1]), found, np.nan)


def equal_error_rate(positive: npt.NDArray[np.bool_], scores: Floats, weights: Floats) -> Floats:
    """Where the rates of false acceptances and of false rejections are equal, on lines between thresholds."""
    false_rate, true_rate = _rates(positive, scores, weights)
    gap = false_rate - (1 - true_rate)  # rises from -1 to 1
    last = np.clip((gap < 0).sum(axis=1), 1, gap.shape[1] - 1)
    rows = np.arange(len(gap))
    before, after = gap[rows, last - 1], gap[rows, last]
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(after > before, -before / (after - before), 0.0)
    start = false_rate[rows, last - 1]
    rate: Floats = start + share * (false_rate[rows, last] - start)
    return rate


def precisions_at(positive: npt.NDArray[np.bool_], scores: Floats, recalls: Floats) -> Floats:
    """The highest precision at each of these recalls or above, float64 [points]; 0 without positive samples."""
    true, false = (part[0] for part in _cumulated(positive, scores, np.ones((1, len(scores)))))
    if not true[-1]:
        return np.zeros(len(recalls))
    highest = np.maximum.accumulate((true / (true + false))[::-1])[::-1]
    found: Floats = highest[np.minimum(np.searchsorted(true / true[-1], recalls), len(highest) - 1)]
    return found


def true_rates_at(positive: npt.NDArray[np.bool_], scores: Floats, false_rates: Floats) -> Floats:
    """The rate of true positives at each of these rates of false ones, on the lines of the ROC curve."""
    false_rate, true_rate = (part[0] for part in _rates(positive, scores, np.ones((1, len(scores)))))
    # Of points above each other the highest.
    last = np.append(np.flatnonzero(np.diff(false_rate)), len(false_rate) - 1)
    found: Floats = np.interp(false_rates, false_rate[last], true_rate[last])
    return found


def threshold_at(positive: npt.NDArray[np.bool_], scores: Floats, max_fpr: float) -> float:
    """The lowest score from which on at most `max_fpr` of the negative samples are taken for positive."""
    negative = np.sort(_worst_for_nan(positive, scores)[~positive])[::-1]
    allowed = int(np.floor(max_fpr * len(negative)))
    return float(np.nextafter(negative[allowed], np.inf)) if allowed < len(negative) else float(scores.min())


def _rates(positive: Any, scores: Floats, weights: Floats) -> tuple[Floats, Floats]:
    """Rates of false and of true positives, [b x thresholds + 1], from the highest threshold to the lowest."""
    true, false = _cumulated(positive, scores, weights)
    zero = np.zeros((len(weights), 1))
    with np.errstate(divide="ignore", invalid="ignore"):
        rates = (np.concatenate([zero, part], axis=1) / part[:, -1:] for part in (false, true))
        false_rate, true_rate = rates
    return false_rate, true_rate


def _cumulated(positive: Any, scores: Floats, weights: Floats) -> tuple[Floats, Floats]:
    """Weights of true and of false positives at every distinct score, highest first, [b x distinct]."""
    scores = _worst_for_nan(positive, scores)
    order = np.argsort(-scores, kind="stable")
    ends = np.append(np.flatnonzero(scores[order[1:]] != scores[order[:-1]]), len(scores) - 1)
    ordered = weights[:, order]
    true = np.cumsum(ordered * positive[order], axis=1)[:, ends]
    false = np.cumsum(ordered * ~positive[order], axis=1)[:, ends]
    return true, false


def _worst_for_nan(positive: npt.NDArray[np.bool_], scores: Floats) -> Floats:
    return np.where(np.isnan(scores), np.where(positive, -np.inf, np.inf), scores)
