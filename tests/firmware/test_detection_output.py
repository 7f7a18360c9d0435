"""Detections in C are those of the evaluation's decoders, on the same outputs."""

from __future__ import annotations

import ctypes
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lowerdeck.firmware.task_output import task_sources
from lowerdeck.tasks import detection
from tests.firmware.c_library import address, library, real, stored, tensor
from tests.marks import quick_first

HEIGHT, WIDTH = 48, 64
ANCHORS = [[[10.0, 13.0], [16.0, 30.0]], [[30.0, 20.0]]]
HEADS_OF_ANCHORS: list[tuple[int, ...]] = [(1, 16, 6, 8), (1, 8, 3, 4)]
GRIDS = {"grids": [[4, 5], [2, 2]], "anchors": [[[0.2, 0.3], [0.4, 0.1]], [[0.6, 0.5]]]}
CASES: dict[str, tuple[dict[str, Any], list[tuple[int, ...]]]] = {
    "boxes": ({"name": "boxes", "is_normalized": True}, [(1, 40, 4), (1, 40, 3)]),
    "boxes_in_one": ({"name": "boxes", "layout": "cxcywh", "activation": "sigmoid"}, [(1, 7, 40)]),
    "boxes_of_few": ({"name": "boxes", "candidates": "rows", "iou_threshold": None}, [(1, 20, 30)]),
    "boxes_softmax": (
        {"name": "boxes", "layout": "yxyx", "is_normalized": True, "activation": "softmax", "background": "last",
         "boxes": "out_1", "scores": "out_0"}, [(1, 40, 4), (1, 40, 4)],
    ),
    "boxes_objectness": (
        {"name": "boxes", "layout": "xywh", "activation": "sigmoid", "has_objectness": True, "iou_threshold": None,
         "max_candidates": 20}, [(1, 40, 9)],
    ),
    "ssd": ({"name": "ssd", **GRIDS}, [(1, 44, 4), (1, 44, 4)]),
    "ssd_yx": (
        {"name": "ssd", **GRIDS, "layout": "yxhw", "activation": "sigmoid", "background": "none",
         "variances": [0.3, 0.1]}, [(1, 44, 4), (1, 44, 4)],
    ),
    "v3": ({"name": "yolo", "formula": "v3", "anchors": ANCHORS}, HEADS_OF_ANCHORS),
    "v5": ({"name": "yolo", "formula": "v5", "anchors": ANCHORS, "score_threshold": 0.2}, HEADS_OF_ANCHORS),
    "v5_heads": (
        {"name": "yolo", "formula": "v5", "anchors": ANCHORS[::-1], "heads": ["out_1", "out_0"]}, HEADS_OF_ANCHORS,
    ),
    "v8": ({"name": "yolo", "formula": "v8", "reg_max": 4}, [(1, 19, 6, 8), (1, 19, 3, 4)]),
    "yolox": ({"name": "yolo", "formula": "x"}, [(1, 8, 6, 8)]),
}  # fmt: skip


class Detection(ctypes.Structure):
    """lowerdeck_detection of detection.h."""

    _fields_ = [(name, ctypes.c_float) for name in ("left", "top", "right", "bottom", "score")] + [
        ("label", ctypes.c_int32)
    ]


@pytest.mark.parametrize("integers", [False, True])
@pytest.mark.parametrize("case", quick_first(CASES, 5))
def test_detections_are_those_of_the_evaluation(tmp_path: Path, case: str, integers: bool) -> None:
    decoder, shapes = CASES[case]
    kind: dict[str, Any] = {"dtype": "int8", "scale": 0.031, "zero_point": 5} if integers else {}
    described = [tensor(shape, order=(0, 2, 3, 1) if len(shape) == 4 else (), **kind) for shape in shapes]
    options = detection.Options(decoder=decoder, max_detections=30)
    metadata = {
        "inputs": [{"shape": [1, 3, HEIGHT, WIDTH]}],
        "outputs": [{"name": f"out_{number}"} for number in range(len(shapes))],
    }
    part = task_sources("detection", dataclasses.asdict(options), metadata)
    assert part is not None
    loaded = library(part, tmp_path, "clang" if integers else "gcc", outputs=described)
    random, found = np.random.default_rng(len(case)), (Detection * 1000)()
    for _ in range(5):
        data = [stored(random.normal(size=each.elements), each) for each in described]
        outputs = {f"out_{number}": real(*pair) for number, pair in enumerate(zip(data, described, strict=True))}
        expected = detection.decoded(options, outputs, [np.zeros((1, 3, HEIGHT, WIDTH))])
        count = loaded.lowerdeck_detect((ctypes.c_void_p * len(data))(*(address(each).value for each in data)), found)
        assert count == len(expected.scores) > 3
        assert [each.label for each in found[:count]] == expected.classes.tolist()
        np.testing.assert_allclose([each.score for each in found[:count]], expected.scores, rtol=3e-7)
        boxes = [[each.left, each.top, each.right, each.bottom] for each in found[:count]]
        np.testing.assert_allclose(boxes, expected.boxes, rtol=1e-6, atol=1e-5)


def test_boxes_that_overlap_by_the_threshold_are_kept_in_both(tmp_path: Path) -> None:
    """Boxes of whole steps do, and rounding to float32, which the evaluation did without, decided then."""
    described = [tensor((1, 40, columns), "int8", 1 / 255, -128) for columns in (4, 1)]
    options = detection.Options(decoder={"name": "boxes", "is_normalized": True})
    metadata = {"inputs": [{"shape": [1, 3, 300, 300]}], "outputs": [{"name": "out_0"}, {"name": "out_1"}]}
    part = task_sources("detection", dataclasses.asdict(options), metadata)
    assert part is not None
    loaded = library(part, tmp_path, "gcc", outputs=described)
    random, found = np.random.default_rng(0), (Detection * 1000)()
    for _ in range(400):
        boxes = np.concatenate([random.integers(0, 150, (5, 2)), random.integers(12, 60, (5, 2))], axis=1)
        boxes = boxes[random.integers(0, 5, 40)] + random.integers(-12, 13, (40, 4))
        boxes[:, 2:] = boxes[:, 2:].clip(2) + boxes[:, :2]
        values = boxes.clip(0, 255) - 128, random.integers(-128, 128, (40, 1))
        data = [np.ascontiguousarray(each.astype(np.int8)[None]) for each in values]
        outputs = {f"out_{number}": real(*pair) for number, pair in enumerate(zip(data, described, strict=True))}
        expected = detection.decoded(options, outputs, [np.zeros((1, 3, 300, 300))])
        count = loaded.lowerdeck_detect((ctypes.c_void_p * 2)(*(address(each).value for each in data)), found)
        assert [each.score for each in found[:count]] == expected.scores.tolist()


def test_decoders_without_a_c_version() -> None:
    metadata = {"inputs": [{"shape": [1, 3, 300, 300]}], "outputs": []}
    torchvision = {"decoder": {"name": "torchvision", "architecture": "ssd300_vgg16"}, "max_detections": 100}
    for decoder in (torchvision, {"decoder": {"name": "plugins.mine"}, "max_detections": 100}):
        assert task_sources("detection", decoder, metadata) is None
