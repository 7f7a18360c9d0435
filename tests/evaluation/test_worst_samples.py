"""The worst samples: which are kept, and what is drawn on them."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from PIL import Image, ImageColor

from lowerdeck import tasks
from lowerdeck.contracts.detection import Boxes
from lowerdeck.contracts.evaluation import OutputSpec, SampleOutputs
from lowerdeck.evaluation.records import ChosenTask
from lowerdeck.evaluation.timelines import ACCEPTED, FALSE, REJECTED
from lowerdeck.evaluation.worst_samples import COLORS, NUM_DRAWN, WorstSamples

SIDE = 64
BLACK = np.zeros((1, 1, SIDE, SIDE), np.float32)


class Split:
    def origin(self, index: int) -> str:
        return f"data/images/{index}.png"


def keeper(task: str, count: int, **options: Any) -> WorstSamples:
    module = tasks.source(task)
    specs = (OutputSpec(name="output"),)
    chosen = ChosenTask(task=module, options=module.Options(**options))
    assert chosen.needs_inputs == (task not in ("regression", "streaming_detection"))
    return WorstSamples(chosen, specs, range(100, 100 + count), Split(), ("ground", "car"))  # type: ignore[arg-type]


def opened(content: bytes) -> Any:
    return np.asarray(Image.open(io.BytesIO(content)))


def test_masks_of_the_worst_are_drawn_side_by_side() -> None:
    worst, mask = keeper("segmentation", 8), np.zeros((SIDE, SIDE), np.int64)
    mask[:32] = 1
    for right in (32, 8, 30, 28, 16, 32, 32, 31):  # rows of the car that the program finds
        scores = np.zeros((1, 2, SIDE, SIDE), np.float32)
        scores[:, 1, :right], scores[:, 0, right:] = 1, 1
        worst.add(SampleOutputs(target=mask, values={"delegated": (scores,)}, inputs=(BLACK,)))
    pictures = worst.pictures()
    assert len(pictures) == NUM_DRAWN
    first = opened(pictures[0])
    left, right = first[14:, : SIDE * 3], first[14:, SIDE * 3 + 4 :]
    color = tuple(value // 2 for value in COLORS[0])
    assert tuple(left[90, 10]) == color
    assert tuple(right[10, 10]) == color
    assert tuple(right[90, 10]) == (0, 0, 0), "the program misses it there"
    assert tuple(left[150, 10]) == (0, 0, 0), "the first class is the background"


def test_boxes_have_their_names_and_samples_that_are_right_come_last() -> None:
    worst = keeper("detection", 2, decoder={"name": "boxes", "candidates": "rows"})
    wanted = Boxes(boxes=np.array([[8.0, 8, 40, 40]]), classes=np.array([1]), crowd=np.array([False]))
    for box in ([8, 8, 40, 40], [20, 30, 60, 60]):
        row = np.tile(np.array([[*box, 0.0, 0.9]], np.float32), (6, 1))
        row[1:, 5] = 0.0
        worst.add(SampleOutputs(target=wanted, values={"delegated": (row[None],)}, inputs=(BLACK,)))
    wrong, right = (opened(content) for content in worst.pictures())
    target = wrong[14:, : SIDE * 3]
    color = np.array(COLORS[1])
    assert (target[8 * 3, 30:110] == color).all(axis=1).mean() > 0.9, "the upper side"
    assert not (wrong[14:, SIDE * 3 + 4 :] == target).all()
    assert (right[14 + 24, SIDE * 3 + 4 + 40 : SIDE * 3 + 4 + 110] == color).all(axis=1).mean() > 0.9


def test_images_of_a_wrong_class_come_first_and_both_classes_are_named() -> None:
    worst = keeper("classification", 6)
    shades = [np.full((1, 3, SIDE, SIDE), shade, np.float32) for shade in range(6)]
    for shade in shades:
        shade[..., 0] = 9  # so that the range of each image is its own
    margins = (3.0, -0.5, 1.0, -4.0, 0.1, 6.0)  # of the right class over the other; the fourth is sure and wrong
    for image, margin in zip(shades, margins, strict=True):
        worst.add(SampleOutputs(target=1, values={"delegated": (np.array([[0.0, margin]]),)}, inputs=(image,)))
    captions = [opened(content)[:14] for content in worst.pictures()]
    assert [-kept.number for kept in sorted(worst._kept, reverse=True)] == [3, 1, 4, 2]
    assert (captions[0] != captions[2]).any(), "ground 0.98 and car 0.52"
    left = SIDE * 3
    assert (captions[0][:, :left] != captions[0][:, left + 4 : 2 * left + 4]).any()
    assert all((caption < 100).any() for caption in captions)


def test_a_program_that_returns_nan_says_no_class() -> None:
    worst = keeper("classification", 3)
    for scores in ([np.nan, np.nan], [np.inf, 0.0], [0.0, np.inf]):
        worst.add(SampleOutputs(target=1, values={"delegated": (np.array([scores]),)}, inputs=(BLACK,)))
    captions = {opened(content)[:14, SIDE * 3 + 4 :].tobytes() for content in worst.pictures()}
    assert len(captions) == 3, "no class, ground and car"


def test_nothing_is_kept_of_tasks_and_samples_that_cannot_be_drawn() -> None:
    values = SampleOutputs(target=np.zeros((1, 3)), values={"delegated": (np.zeros((1, 3)),)}, inputs=(BLACK,))
    worst = keeper("regression", 1)
    worst.add(values)
    assert worst.pictures() == []
    worst = keeper("segmentation", 2)
    scores = np.zeros((1, 2, 4, 4))
    worst.add(SampleOutputs(target=None, values={"delegated": (scores,)}, inputs=(BLACK,)))
    worst.add(SampleOutputs(target=np.zeros((4, 4), int), values={"delegated": (scores,)}, inputs=(np.zeros((1, 9)),)))
    assert worst.pictures() == []


def stream(num_events: int, *fires: int) -> SampleOutputs:
    scores = np.tile(np.array([[0.1, 0.9]]), (200, 1))
    scores[list(fires)] = [0.99, 0.01]
    events = np.array([(4.0 * (number + 1), 4.0 * (number + 1) + 0.5) for number in range(num_events)]).reshape(-1, 2)
    target = {"events_s": events, "first_call_s": 0.0, "call_s": 0.1}
    return SampleOutputs(target=target, values={"delegated": (scores[None],)}, inputs=())


def colors(picture: Any) -> set[tuple[int, ...]]:
    return {tuple(color) for color in picture.reshape(-1, 3).tolist()}


def test_a_stream_is_drawn_with_its_events_and_errors_and_the_worst_comes_first() -> None:
    worst = keeper("streaming_detection", 3, scores="probabilities")
    for sample in (stream(1, 42), stream(2, 42, 120), stream(2, 42, 82)):  # right; one missed, one false; right
        worst.add(sample)
    first, *right = (opened(content) for content in worst.pictures())
    accepted, missed, false = (ImageColor.getrgb(color) for color in (ACCEPTED, REJECTED, FALSE))
    assert {accepted, missed, false} <= colors(first)
    assert len(right) == 2
    for picture in right:
        assert accepted in colors(picture)
        assert not {missed, false} & colors(picture)
