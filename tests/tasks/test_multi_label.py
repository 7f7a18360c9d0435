"""Multi-label: the metrics are scikit-learn's on the same arrays."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn import metrics as library

from lowerdeck.contracts.errors import LowerdeckError
from tests.tasks.judge import judged

GENERATOR = np.random.default_rng(0)
TARGETS = GENERATOR.integers(0, 2, (80, 3))
SCORES = GENERATOR.normal(size=(80, 3)) + TARGETS


def test_metrics_are_the_librarys() -> None:
    found = judged("multi_label", SCORES, list(TARGETS)).metrics
    assert found["float_map"] == pytest.approx(library.average_precision_score(TARGETS, SCORES), abs=1e-9)
    assert found["float_f1"] == pytest.approx(library.f1_score(TARGETS, SCORES > 0, average="macro"), abs=1e-9)
    each = library.average_precision_score(TARGETS, SCORES, average=None)
    assert [found[f"classes.{label}.float_average_precision"] for label in range(3)] == pytest.approx(each, abs=1e-9)


def test_targets_are_0_or_1_for_every_label() -> None:
    with pytest.raises(LowerdeckError, match=r"returns 3 scores and the target has shape \[2\]; store 0 or 1"):
        judged("multi_label", SCORES, list(TARGETS[:, :2]))
    with pytest.raises(LowerdeckError, match="with other values than 0 and 1"):
        judged("multi_label", SCORES, list(TARGETS * 2))


def test_nan_is_never_right() -> None:
    """Labels that do not apply were right where their scores are NaN."""
    scores = np.where(TARGETS == 1, 1.0, np.nan)
    found = judged("multi_label", scores, list(TARGETS)).metrics
    assert found["float_f1"] == pytest.approx(library.f1_score(TARGETS, np.ones_like(TARGETS), average="macro"))
