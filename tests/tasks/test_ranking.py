"""Metrics of rankings equal scikit-learn's with sample weights, ties included."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn import metrics as library

from lowerdeck.tasks import ranking

GENERATOR = np.random.default_rng(0)
POSITIVE = GENERATOR.random(200) < 0.3
SCORES = np.round(GENERATOR.normal(size=200) + POSITIVE, 1)  # many ties
WEIGHTS = np.stack([np.ones(200), *GENERATOR.multinomial(200, [1 / 200] * 200, size=4)]).astype(float)


def test_average_precision() -> None:
    found = ranking.average_precision(POSITIVE, SCORES, WEIGHTS)
    expected = [library.average_precision_score(POSITIVE, SCORES, sample_weight=row) for row in WEIGHTS]
    assert found == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("max_fpr", [1.0, 0.1, 0.37])
def test_roc_auc(max_fpr: float) -> None:
    found = ranking.roc_auc(POSITIVE, SCORES, WEIGHTS, max_fpr)
    limit = None if max_fpr == 1 else max_fpr
    expected = [library.roc_auc_score(POSITIVE, SCORES, sample_weight=row, max_fpr=limit) for row in WEIGHTS]
    assert found == pytest.approx(expected, abs=1e-9)


def test_recall_and_threshold_at_a_rate() -> None:
    (found,) = ranking.recall_at(POSITIVE, SCORES, WEIGHTS[:1], 0.1)
    threshold = ranking.threshold_at(POSITIVE, SCORES, 0.1)
    assert (SCORES[~POSITIVE] >= threshold).mean() <= 0.1
    assert found == (SCORES[POSITIVE] >= threshold).mean()


def test_equal_error_rate() -> None:
    scores = np.array([0.9, 0.8, 0.7, 0.6, 0.4, 0.3])
    positive = np.array([True, True, False, True, False, False])
    assert ranking.equal_error_rate(positive, scores, np.ones((1, 6))) == pytest.approx([1 / 3])
    assert ranking.equal_error_rate(positive, -np.arange(6.0) * positive, np.ones((1, 6)))[0] >= 0


def test_without_both_kinds_nothing_is_defined() -> None:
    ones = np.ones(3, dtype=bool)
    assert np.isnan(ranking.roc_auc(ones, np.arange(3.0), np.ones((1, 3))))
    assert np.isnan(ranking.average_precision(~ones, np.arange(3.0), np.ones((1, 3))))


def test_nan_is_the_worst_score_in_any_order() -> None:
    """It was the best or the worst one by the order of the samples."""
    positive, nan = np.array([True, False, True, False]), np.full(4, np.nan)
    for order in ([0, 1, 2, 3], [1, 3, 0, 2], [2, 0, 3, 1]):
        assert ranking.roc_auc(positive[order], nan, np.ones((1, 4))) == [0.0]
        assert ranking.recall_at(positive[order], nan, np.ones((1, 4)), 0.4) == [0.0]
        scores = np.array([2.0, 1.0, np.nan, 0.0])[order]
        assert ranking.roc_auc(positive[order], scores, np.ones((1, 4))) == [0.5]
