"""Segmentation: the metrics are scikit-learn's on the pixels of all masks."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn import metrics as library

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.evaluation import task_metrics
from lowerdeck.tasks import segmentation
from tests.tasks.judge import judged

GENERATOR = np.random.default_rng(0)
MASKS = GENERATOR.integers(0, 3, (20, 8, 8))
SCORES = GENERATOR.normal(size=(20, 4, 8, 8)) + 2 * np.moveaxis(np.eye(4)[MASKS], -1, 1)
MASKS[:, 0] = 255


def test_metrics_are_the_librarys_and_pixels_without_a_class_do_not_count() -> None:
    valid = MASKS != 255
    actual, predicted = MASKS[valid], SCORES.argmax(1)[valid]
    found = judged("segmentation", SCORES, list(MASKS)).metrics
    assert found["float_pixel_accuracy"] == pytest.approx(library.accuracy_score(actual, predicted), abs=1e-9)
    assert found["float_miou"] == pytest.approx(library.jaccard_score(actual, predicted, average="macro"), abs=1e-9)
    assert found["float_dice"] == pytest.approx(library.f1_score(actual, predicted, average="macro"), abs=1e-9)
    each = library.jaccard_score(actual, predicted, average=None)
    assert [found[f"classes.{label}.float_iou"] for label in range(4)] == pytest.approx(each, abs=1e-9)


def test_negative_pixels_have_no_class_whatever_ignore_is() -> None:
    """Such as the bars of a letterbox."""
    masks = np.where(MASKS == 255, -1, MASKS)
    for ignore in (None, 65535):
        found = judged("segmentation", SCORES, list(masks), ignore=ignore).metrics
        assert found == judged("segmentation", SCORES, list(MASKS)).metrics


def test_pixels_without_a_class_are_drawn_in_neither_mask() -> None:
    """Of masks of unsigned integers, they were drawn as class 255."""
    mask = np.array([[0, 1], [255, 1]], np.uint8)
    for drawn in segmentation.overlay(segmentation.Options(), {"scores": np.zeros((1, 2, 2, 2))}, mask, ()):
        assert np.asarray(drawn.mask)[1, 0] == -1


def test_one_channel_is_the_logit_of_class_1() -> None:
    logits, masks = np.array([[[[1.0, -1.0]]], [[[2.0, 3.0]]]]), np.array([[[1, 0]], [[1, 0]]])
    assert judged("segmentation", logits, list(masks)).metrics["float_pixel_accuracy"] == 0.75


@pytest.mark.parametrize(
    ("scores", "mask", "message"),
    [
        (np.zeros((4, 8)), np.zeros((8, 8), int), r"returns \[1, 4, 8\] where segmentation needs"),
        (np.zeros((4, 4, 4)), np.zeros((8, 8), int), r"returns \[4, 4\] pixels and the mask is int64 \[8, 8\]"),
        (np.zeros((4, 8, 8)), np.zeros((8, 8)), "store masks of integers"),
        (np.zeros((4, 8, 8)), np.full((8, 8), 256), "a mask has the classes 256 ... 256"),
        (np.zeros((4, 8, 8)), np.full((8, 8), 4), "a mask has the classes 4 ... 4 and the model 4"),
    ],
)
def test_what_does_not_fit_is_refused(scores: np.ndarray, mask: np.ndarray, message: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(LowerdeckError, match=message):
        judged("segmentation", [scores], [mask])


def test_a_drop_of_nothing_but_last_bits_is_none() -> None:
    """The gate `max_quantization_drop: 0` failed where classes changed places, whose shares add up in another order."""
    rng, own = np.random.default_rng(5), np.repeat(np.arange(4), 12).reshape(4, 12)
    found = np.where(rng.random((4, 12)) < 0.6, own, rng.integers(0, 4, (4, 12)))
    renamed = (np.roll(found, 1, axis=0) + 1) % 4
    scores = [np.eye(4)[classes].transpose(2, 0, 1) for classes in (found, renamed)]
    metrics = judged("segmentation", scores[:1], [own], quantized=scores[1:]).metrics
    assert metrics["quantization_drop"] == 0


def test_names_of_classes_name_their_metrics_unless_they_are_ambiguous() -> None:
    names = ["traffic light", "car", "road/way"]
    assert task_metrics.metric_names(names) == ("traffic_light", "car", "road_way")
    assert task_metrics.metric_names(["a b", "a_b"]) == ()
    assert task_metrics.metric_names(["a", "?"]) == ()


@pytest.mark.parametrize("channels", [1, 2])
def test_pixels_whose_scores_are_nan_have_no_class(channels: int) -> None:
    """A program that returned nothing but NaN found all of the background."""
    mask = np.zeros((4, 4), int)
    mask[0, 0] = 1
    scores = np.full((channels, 4, 4), np.nan)
    found = judged("segmentation", [scores], [mask]).metrics
    assert (found["float_pixel_accuracy"], found["float_miou"], found["float_dice"]) == (0.0, 0.0, 0.0)
    scores[-1, 0, 0], scores[0, 0, 0] = 1.0, 1.0 if channels == 1 else 0.0
    assert judged("segmentation", [scores], [mask]).metrics["float_pixel_accuracy"] == 1 / 16
