"""Anomalies: scores of recordings, and metrics that are scikit-learn's."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn import metrics as library

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.tasks import anomaly
from tests.tasks.judge import judged

GENERATOR = np.random.default_rng(0)
LABELS = GENERATOR.integers(0, 2, 60)
INPUTS = GENERATOR.normal(size=(60, 5))
OUTPUTS = INPUTS + GENERATOR.normal(size=(60, 5)) * (0.5 + 0.4 * LABELS[:, None])


def test_the_score_is_the_error_of_the_reconstruction() -> None:
    found = judged("anomaly", OUTPUTS, LABELS.tolist(), INPUTS).metrics
    scores = np.square(OUTPUTS - INPUTS).mean(1)
    assert found["float_auc"] == pytest.approx(library.roc_auc_score(LABELS, scores), abs=1e-9)
    assert found["float_partial_auc"] == pytest.approx(library.roc_auc_score(LABELS, scores, max_fpr=0.1), abs=1e-9)
    assert (scores[LABELS == 0] >= found["float_threshold"]).mean() <= 0.1
    assert found["float_recall_at_fpr"] == (scores[LABELS == 1] >= found["float_threshold"]).mean()


def test_scores_of_a_recording_are_averaged_and_it_is_resampled_as_a_whole() -> None:
    recordings = np.repeat(np.arange(15), 4)
    labels = LABELS[:15]
    targets = [{"label": int(labels[group]), "group": int(group)} for group in recordings]
    measured = judged("anomaly", OUTPUTS, targets, INPUTS)
    scores = np.square(OUTPUTS - INPUTS).mean(1).reshape(15, 4).mean(1)
    assert measured.metrics["float_auc"] == pytest.approx(library.roc_auc_score(labels, scores), abs=1e-9)
    alone = judged("anomaly", OUTPUTS, np.repeat(labels, 4).tolist(), INPUTS)
    width = [found.metrics["float_auc_high"] - found.metrics["float_auc_low"] for found in (measured, alone)]
    assert width[0] > width[1], "fifteen recordings say less than sixty samples"


def test_an_output_may_be_the_score() -> None:
    found = judged("anomaly", LABELS[:, None].astype(float), LABELS.tolist(), INPUTS, score="output").metrics
    assert found["float_auc"] == 1.0
    with pytest.raises(LowerdeckError, match="needs one score"):
        judged("anomaly", OUTPUTS, LABELS.tolist(), INPUTS, score="output")
    with pytest.raises(LowerdeckError, match="a reconstruction has as many values"):
        judged("anomaly", OUTPUTS[:, :2], LABELS.tolist(), INPUTS)
    with pytest.raises(LowerdeckError, match=r"has the label 2; labels are 0 \(normal\) or 1 \(anomalous\)"):
        judged("anomaly", OUTPUTS, [2] * 60, INPUTS)
    with pytest.raises(ValueError, match="between 0 and 1"):
        anomaly.Options(max_false_positive_rate=1.0)


def test_a_perfect_separation_has_an_area_of_exactly_1() -> None:
    """Its sum ended a bit below: it read `99.99 % (95 %: 100 to 100)`, and missed a bound of 1."""
    for num_anomalous in range(12, 29, 4):
        labels = (np.arange(40) < num_anomalous).astype(int)
        scores = labels + GENERATOR.random(40) / 2
        found = judged("anomaly", scores[:, None], labels.tolist(), score="output").metrics
        assert [found["float_auc" + end] for end in ("_low", "", "_high")] == [1.0, 1.0, 1.0]
        assert (found["float_partial_auc"], found["quantization_drop"]) == (1.0, 0.0)
