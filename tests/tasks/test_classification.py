"""Classification: the metrics are scikit-learn's on the same arrays, and their intervals hold what they say."""

from __future__ import annotations

import itertools
from typing import Any, Literal

import numpy as np
import pytest
from sklearn import metrics as library

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.tasks import classification
from tests.tasks.judge import judged

GENERATOR = np.random.default_rng(0)
LABELS = GENERATOR.integers(0, 6, 300)
SCORES = GENERATOR.normal(size=(300, 6)) + 2 * np.eye(6)[LABELS]


def test_metrics_are_the_librarys() -> None:
    found = judged("classification", SCORES, LABELS.tolist(), top_k=[2, 5]).metrics
    predicted = SCORES.argmax(1)
    assert found["float_accuracy"] == library.accuracy_score(LABELS, predicted)
    assert found["float_top2_accuracy"] == library.top_k_accuracy_score(LABELS, SCORES, k=2)
    assert found["float_f1"] == pytest.approx(library.f1_score(LABELS, predicted, average="macro"), abs=1e-9)


@pytest.mark.parametrize("scores", ["logits", "probabilities"])
@pytest.mark.parametrize("classes", [2, 7, 10, 1000])
def test_samples_are_recorded_together_with_the_bits_of_each_alone(scores: Literal["logits"], classes: int) -> None:
    options = classification.Options(scores=scores, top_k=[3, 5])
    values = GENERATOR.normal(size=(40, 1, classes)).astype(np.float32)
    values[5:10] = values[5:10].round()  # with scores that are equal
    values[10] = 1e30
    targets = GENERATOR.integers(0, classes, 40).tolist()
    together = classification.record_many(options, {"output": values}, targets)
    assert together is not None
    for row, target in enumerate(targets):
        alone = classification.record(options, {"output": values[row]}, target)
        assert {name: (array[row].tobytes(), array.dtype) for name, array in together.items()} == {
            name: (array.tobytes(), array.dtype) for name, array in alone.items()
        }


@pytest.mark.parametrize("target", [3, -1, None, True, [1]])
def test_what_is_wrong_is_said_of_one_sample(target: Any) -> None:
    values = GENERATOR.normal(size=(2, 1, 3))
    assert classification.record_many(classification.Options(), {"output": values}, [0, target]) is None
    values[1, 0, 1] = np.nan
    assert classification.record_many(classification.Options(), {"output": values}, [0, 1]) is None


def test_f1_is_the_same_however_classes_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    records = {"label": LABELS, "predicted": SCORES.argmax(1), "hit": SCORES.argmax(1) == LABELS}
    weights = GENERATOR.multinomial(300, np.full(300, 1 / 300), size=700).astype(np.float64)
    by_products = classification._f1(records, weights)
    monkeypatch.setattr(classification, "_MULTIPLIED_AT_ONCE", 0)
    assert by_products.tobytes() == classification._f1(records, weights).tobytes()


def test_the_calibration_error_by_its_definition() -> None:
    exponents = np.exp(SCORES - SCORES.max(1, keepdims=True))
    confidence = (exponents / exponents.sum(1, keepdims=True)).max(1)
    hits, bins, expected = SCORES.argmax(1) == LABELS, np.linspace(0, 1, 16), 0.0
    for low, high in itertools.pairwise(bins):
        members = (confidence > low) & (confidence <= high)
        if members.any():
            expected += abs(hits[members].mean() - confidence[members].mean()) * members.mean()
    found = judged("classification", SCORES, LABELS.tolist()).metrics
    assert found["float_calibration_error"] == pytest.approx(expected, abs=1e-9)


def test_intervals_contain_the_metric_and_the_truth() -> None:
    measured = judged("classification", SCORES, LABELS.tolist())
    for name in ("accuracy", "f1", "calibration_error"):
        low, high = (measured.metrics[f"float_{name}_{end}"] for end in ("low", "high"))
        assert low <= measured.metrics[f"float_{name}"] <= high
        assert 0.01 < high - low < 0.2
    assert set(measured.draws) >= {"float_f1", "quantization_drop_f1", "quantized_cosine"}
    assert "float_accuracy" not in measured.draws, "it has a closed form"


def test_what_needs_more_classes_is_left_out() -> None:
    found = judged("classification", SCORES[:, :3], (LABELS % 3).tolist(), top_k=[2, 3]).metrics
    assert "float_top2_accuracy" in found
    assert not any("top3" in name for name in found if not name.startswith("task_metrics."))


def test_ties_go_to_the_lower_class_as_in_argmax() -> None:
    tied = np.zeros((2, 3))
    assert judged("classification", tied, [0, 1]).metrics["float_accuracy"] == 0.5


def test_scores_that_are_not_finite_count_and_have_no_confidence() -> None:
    scores = np.array([[0.0, np.inf], [1.0, 0.0]])
    assert judged("classification", scores, [1, 0]).metrics["float_accuracy"] == 1.0


@pytest.mark.parametrize(
    ("output", "target", "message"),
    [
        (np.zeros((4, 2)), 0, r"returns shape \[1, 4, 2\] where classification needs scores"),
        (np.zeros(3), 3, "has the class 3 and the model 3 outputs"),
        (np.zeros(3), np.zeros((2, 2)), r"needs a class index as target, and the dataset has an array \[2, 2\]"),
        (np.zeros(3), {"label": 1, "group": 7}, "by itself, and the dataset names the recording of each; remove what"),
    ],
)
def test_what_does_not_fit_is_refused(output: np.ndarray, target: object, message: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(LowerdeckError, match=message):
        judged("classification", [output], [target])


def test_an_unknown_output_is_refused() -> None:
    with pytest.raises(LowerdeckError, match=r"task.options.output is 'logit', and the model returns output"):
        judged("classification", SCORES[:1], [0], output="logit")


@pytest.mark.parametrize("top_k", [[1], [2, 2]])
def test_options_are_checked(top_k: list[int]) -> None:
    with pytest.raises(ValueError, match="different numbers above 1"):
        classification.Options(top_k=top_k)


@pytest.mark.parametrize("scores", ["logits", "probabilities"])
def test_nan_is_never_right(scores: str) -> None:
    """A program that returned nothing but NaN had an accuracy of 100 %."""
    found = judged("classification", np.full((3, 4), np.nan), [0, 1, 2], scores=scores, top_k=[2]).metrics
    assert {name: found[f"float_{name}"] for name in ("accuracy", "top2_accuracy", "f1")} == {
        "accuracy": 0.0, "top2_accuracy": 0.0, "f1": 0.0,
    }  # fmt: skip
    one = np.array([[np.nan, 1.0, 2.0], [0.0, 1.0, 2.0]])
    assert judged("classification", one, [2, 2]).metrics["float_accuracy"] == 0.5


def test_nan_is_no_class() -> None:
    """Class 0 was perfect in classes.csv and in the confusion matrix, with an accuracy of 50 % beside them."""
    scores = np.array([[np.nan] * 3, [np.nan, 1.0, 0.0], [0.0, 1.0, 0.0], [0.0, 1.0, 0.0]])
    found = judged("classification", scores, [0, 0, 1, 1])
    assert found.confusion["float"].tolist() == [[0, -1], [0, -1], [1, 1], [1, 1]]
    assert found.metrics["float_f1"] == 0.5, "the mean over two classes"
