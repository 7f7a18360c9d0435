"""Decoders against torchvision's own, and against formulas that are turned round."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torchvision import models
from torchvision.models.detection import _utils

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.tasks.decoders import boxes, selection, ssd, torchvision, yolo

GENERATOR = np.random.default_rng(0)
SIZE = (96, 64)


def logit(share: Any) -> Any:
    return np.log(share / (1 - share))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "num_classes", "first"),
    [("ssdlite320_mobilenet_v3_large", 5, 1), ("retinanet_resnet50_fpn", 3, 0)],
)
def test_heads_of_torchvision_are_decoded_as_its_own_model_does(
    architecture: str, num_classes: int, first: int
) -> None:
    torch.manual_seed(0)
    model = models.get_model(architecture, weights=None, weights_backbone=None, num_classes=num_classes).eval()
    side = 320
    if not architecture.startswith("ssd"):
        model.transform.min_size, model.transform.max_size = (side,), side
    image = torch.rand(1, 3, side, side)
    model.score_thresh, model.nms_thresh, model.detections_per_img = 0.05, 0.5, 100
    with torch.no_grad():
        (expected,) = model(image)
        images, _ = model.transform(image)
        raw = model.head(list(model.backbone(images.tensors).values()))
    options = torchvision.Options(
        architecture=architecture, num_classes=num_classes, first_label=first, score_threshold=0.05
    )
    found = torchvision.decode(options, {f"head.{name}": value.numpy() for name, value in raw.items()}, (side, side))
    labels = expected["labels"].numpy()
    assert len(found.boxes) == (labels >= first).sum() > 0
    assert found.boxes == pytest.approx(expected["boxes"].numpy()[labels >= first], abs=1e-4)
    assert found.scores == pytest.approx(expected["scores"].numpy()[labels >= first], abs=1e-6)
    assert found.classes.tolist() == (labels[labels >= first] - first).tolist()
    if first == 0:
        return
    with pytest.raises(LowerdeckError, match=r"bbox_regression has shape \[1, 7, 4\]"):
        torchvision.decode(
            options, {"cls_logits": np.zeros((1, 7, 5)), "bbox_regression": np.zeros((1, 7, 4))}, (320, 320)
        )
    with pytest.raises(LowerdeckError, match="needs the outputs bbox_regression, and the model returns cls_logits"):
        torchvision.decode(options, {"cls_logits": np.zeros((1, 7, 5))}, (320, 320))


def test_ssd_is_torchvisions_box_coder() -> None:
    options = ssd.Options(
        grids=[[3, 2], [1, 1]],
        anchors=[[[0.2, 0.3], [0.4, 0.1]], [[0.5, 0.5]]],
        iou_threshold=None,
        score_threshold=0.0,
    )
    offsets, scores = GENERATOR.normal(size=(1, 13, 4)), GENERATOR.normal(size=(1, 13, 3))
    found = ssd.decode(options, {"offsets": offsets, "scores": scores}, SIZE)
    anchors = torch.from_numpy(selection.corners(ssd.anchor_boxes(options), "cxcywh") * [64, 96, 64, 96])
    coder = _utils.BoxCoder(weights=(10.0, 10.0, 5.0, 5.0))
    expected = coder.decode_single(torch.from_numpy(offsets[0]), anchors).numpy().clip(0, [64, 96, 64, 96])
    probabilities = torch.from_numpy(scores[0]).softmax(-1)[:, 1:].numpy()
    order = np.argsort(-probabilities.astype(np.float32).ravel(), kind="stable")
    assert found.scores == pytest.approx(probabilities.ravel()[order], abs=1e-6)
    assert found.boxes == pytest.approx(expected[order // 2], abs=1e-9)
    assert found.num_classes == 2
    turned = ssd.decode(
        ssd.Options(**{**vars(options), "layout": "yxhw"}), {"o": offsets[..., [1, 0, 3, 2]], "s": scores}, SIZE
    )
    assert turned.boxes == pytest.approx(found.boxes)
    with pytest.raises(LowerdeckError, match=r"offsets of 12 boxes and scores of 13, .* make 13 anchors"):
        ssd.decode(options, {"offsets": offsets[:, 1:], "scores": scores}, SIZE)


def test_yolo_formulas_turned_round() -> None:
    centre, extent, stride = np.array([27.0, 43.0]), np.array([18.0, 30.0]), 16
    wanted = [18.0, 28.0, 36.0, 58.0]
    cell = np.array([1, 2])  # the column and row of the centre, at a stride of 16
    share = centre / stride - cell
    raw = {
        "v3": [*logit(share), *np.log(extent / [20, 20])],
        "v5": [*logit((share + 0.5) / 2), *logit(np.sqrt(extent / [20, 20]) / 2)],
        "x": [*share, *np.log(extent / stride)],
    }
    formula: Any
    for formula, numbers in raw.items():
        anchors = [] if formula == "x" else [[[20.0, 20.0], [5.0, 5.0]]]
        num_anchors = 1 if formula == "x" else 2
        head = np.full((1, num_anchors * 7, 6, 4), -20.0)
        head[0, :7, 2, 1] = [*numbers, 20.0, logit(0.8), -20.0]
        found = yolo.decode(yolo.Options(formula=formula, anchors=anchors), {"head": head}, SIZE)
        assert found.boxes == pytest.approx(np.array([wanted])), formula
        assert (found.scores[0], found.classes[0]) == (pytest.approx(0.8), 0)
    distances = np.array([centre[0] - 18, centre[1] - 28, 36 - centre[0], 58 - centre[1]]) / stride
    middle = (cell + 0.5) - centre / stride
    distances += [*middle, *-middle]
    head = np.full((1, 4 * 4 + 2, 6, 4), -50.0)
    for side, distance in enumerate(distances):
        whole = int(distance)
        head[0, side * 4 + whole, 2, 1] = np.log(1 - (distance - whole))
        head[0, side * 4 + whole + 1, 2, 1] = np.log(distance - whole)
    head[0, 17, 2, 1] = logit(0.7)
    found = yolo.decode(yolo.Options(formula="v8", reg_max=4), {"head": head}, SIZE)
    assert found.boxes == pytest.approx(np.array([wanted]))
    assert (found.scores[0], found.classes[0]) == (pytest.approx(0.7), 1)


def test_several_heads_are_one_list() -> None:
    heads = {name: GENERATOR.normal(size=(1, 2 * 8, rows, rows)) for name, rows in (("fine", 8), ("coarse", 4))}
    options = yolo.Options(anchors=[[[8, 8], [16, 8]], [[30, 30], [40, 20]]], score_threshold=0.1)
    both = yolo.decode(options, heads, (64, 64))
    assert both.num_classes == 3
    assert len(both.boxes) > 5
    fewer = yolo.Options(anchors=[[[8, 8], [16, 8]]], heads=["fine"], score_threshold=0.1)
    assert len(yolo.decode(fewer, heads, (64, 64)).boxes) < len(both.boxes)
    with pytest.raises(LowerdeckError, match=r"there are 2 heads \(fine, coarse\), and .*anchors has 1 lists"):
        yolo.decode(yolo.Options(anchors=[[[8, 8]]]), heads, (64, 64))
    with pytest.raises(LowerdeckError, match=r"formula v5 needs \[1, 3 x \(5 \+ classes\), rows, columns\]"):
        yolo.decode(yolo.Options(anchors=[[[8, 8]] * 3], heads=["fine"]), heads, (64, 64))


@pytest.mark.parametrize(
    ("layout", "box"),
    [("xyxy", [8, 12, 24, 60]), ("yxyx", [12, 8, 60, 24]), ("xywh", [8, 12, 16, 48]), ("cxcywh", [16, 36, 16, 48])],
)
def test_boxes_in_every_layout(layout: Any, box: list[float]) -> None:
    logits = np.array([[[2.0, -1.0, 0.5], [0.0, 3.0, 0.5]]])
    given = np.array([[box, box]], float)
    options = boxes.Options(layout=layout, activation="softmax", background="last", iou_threshold=None)
    found = boxes.decode(options, {"pred_boxes": given, "logits": logits}, SIZE)
    assert found.boxes == pytest.approx(np.array([[8, 12, 24, 60]] * 4, float))
    assert found.num_classes == 2
    expected = torch.from_numpy(logits[0]).softmax(-1)[:, :2].numpy()
    assert sorted(found.scores) == pytest.approx(np.sort(expected.ravel()))
    sides = np.array([96, 64, 96, 64] if layout == "yxyx" else [64, 96, 64, 96])
    relative = boxes.Options(**{**vars(options), "is_normalized": True})
    again = boxes.decode(relative, {"pred_boxes": given / sides, "logits": logits}, SIZE)
    assert again.boxes == pytest.approx(found.boxes)


def test_candidates_in_one_output_either_way_with_objectness() -> None:
    rows = np.concatenate([GENERATOR.uniform(10, 50, (1, 40, 4)), GENERATOR.uniform(0, 1, (1, 40, 4))], axis=2)
    options = boxes.Options(layout="cxcywh", has_objectness=True)
    found = boxes.decode(options, {"output": rows}, SIZE)
    turned = boxes.decode(options, {"output": rows.transpose(0, 2, 1)}, SIZE)
    assert found.boxes == pytest.approx(turned.boxes)
    assert found.num_classes == 3
    assert found.scores.max() == pytest.approx((rows[0, :, 4:5] * rows[0, :, 5:]).max())
    with pytest.raises(LowerdeckError, match=r"the model returns \[1, 3, 8\], and the decoder boxes needs"):
        boxes.decode(options, {"output": rows[:, :3]}, SIZE)
    with pytest.raises(LowerdeckError, match="the model returns 40 boxes and scores of 39"):
        boxes.decode(options, {"boxes": rows[..., :4], "scores": rows[:, 1:, 4:]}, SIZE)


@pytest.mark.parametrize("shape", [(84, 84), (50, 95), (95, 50)])
def test_rows_or_columns_that_could_be_either_have_to_be_named(shape: tuple[int, int]) -> None:
    """The longer dimension was taken for candidates: DETR's 50 queries of 91 classes became 95 of 46."""
    rows = GENERATOR.uniform(0, 1, (1, *shape))
    with pytest.raises(LowerdeckError, match=r"whether its rows or its columns .*decoder\.candidates: rows for"):
        boxes.decode(boxes.Options(), {"output": rows}, SIZE)
    found = boxes.decode(boxes.Options(candidates="rows"), {"output": rows}, SIZE)
    turned = boxes.decode(boxes.Options(candidates="columns"), {"output": rows.transpose(0, 2, 1)}, SIZE)
    assert found.num_classes == turned.num_classes == shape[1] - 4
    assert found.boxes == pytest.approx(turned.boxes)


def test_few_candidates_are_possible_and_too_few_numbers_are_not() -> None:
    values = GENERATOR.uniform(0, 1, (1, 3, 8))
    assert boxes.decode(boxes.Options(candidates="rows"), {"output": values}, SIZE).num_classes == 4
    with pytest.raises(LowerdeckError, match=r"returns \[1, 3, 8\], .*candidates is columns"):
        boxes.decode(boxes.Options(candidates="columns"), {"output": values}, SIZE)


def test_of_two_boxes_of_a_class_the_better_one_stays() -> None:
    options = selection.SelectionOptions(score_threshold=0.2, iou_threshold=0.5)
    both = np.array([[0.0, 0, 10, 10], [1, 0, 11, 10], [40, 40, 90, 200]])
    found = selection.selected(options, both, np.array([[0.9, 0.1], [0.95, 0.6], [0.3, 0.1]]), SIZE)
    assert found.scores.tolist() == pytest.approx([0.95, 0.6, 0.3])
    assert found.classes.tolist() == [0, 1, 0]
    assert found.boxes[2].tolist() == [40, 40, 64, 96], "clipped to the image"


@pytest.mark.parametrize(
    ("schema", "values", "message"),
    [
        (boxes.Options, {"score_threshold": 1.0}, "from 0 to below 1"),
        (boxes.Options, {"iou_threshold": 0.0}, "above 0 and at most 1, or null"),
        (boxes.Options, {"max_candidates": 0}, "at least 1"),
        (ssd.Options, {"grids": [[2, 2]], "anchors": []}, "1 grids and anchors for 0"),
        (ssd.Options, {"grids": [[2]], "anchors": [[[1, 1]]]}, r"has to be \[rows, columns\]"),
        (ssd.Options, {"grids": [[2, 2]], "anchors": [[[1, 0]]]}, r"has to be \[width, height\]"),
        (ssd.Options, {"grids": [[2, 2]], "anchors": [[[1, 1]]], "variances": [0.1]}, "two numbers above 0"),
        (yolo.Options, {}, "formula v5 needs anchors"),
        (yolo.Options, {"formula": "v8", "anchors": [[[1, 1]]]}, "formula v8 has no anchors"),
        (yolo.Options, {"anchors": [[[1, 0]]]}, r"has to be \[width, height\]"),
        (yolo.Options, {"formula": "v8", "reg_max": 0}, "at least 1"),
        (torchvision.Options, {"architecture": "fasterrcnn_resnet50_fpn"}, "there are: fcos_resnet50_fpn"),
        (torchvision.Options, {"architecture": "ssd300_vgg16", "first_label": -1}, "must be at least 0 and below 91"),
    ],
)
def test_options_are_checked(schema: Any, values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        schema(**values)
