"""Detection: the metrics are pycocotools' on the same arrays, for any weights of the images."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import shutil
import sys
from contextlib import chdir
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from lowerdeck import tasks
from lowerdeck.config.compose import compose
from lowerdeck.contracts.detection import Boxes
from lowerdeck.contracts.errors import ConfigurationError, LowerdeckError
from lowerdeck.fingerprints.closures import Sources, stage_closures
from lowerdeck.tasks import box_matching
from lowerdeck.tasks.detection import Options, measure, record
from tests.project import REPOSITORY
from tests.tasks.judge import judged

NUM_CLASSES, NUM_IMAGES, SIZE = 4, 40, 64
OPTIONS = Options(decoder={"name": "boxes", "score_threshold": 0.0, "iou_threshold": None})
IMAGE = np.zeros((1, 3, SIZE, SIZE), np.float32)


def random_boxes(generator: np.random.Generator, count: int) -> np.ndarray:  # type: ignore[type-arg]
    start = generator.integers(0, SIZE - 20, (count, 2))
    boxes: np.ndarray = np.concatenate(  # type: ignore[type-arg]
        [start, start + generator.integers(4, 20, (count, 2))], axis=1
    ).astype(float)
    return boxes


def made(generator: np.random.Generator, decimals: int = 2) -> tuple[list[Boxes], list[tuple[Any, Any, Any]]]:
    """Objects, some of them crowds, and detections near them or anywhere, with ties of scores; class 3 has none."""
    wanted, found = [], []
    for image in range(NUM_IMAGES):
        count = int(generator.integers(0, 7))
        boxes, classes = random_boxes(generator, count), generator.integers(0, NUM_CLASSES - 1, count)
        wanted.append(Boxes(boxes=boxes, classes=classes, crowd=(generator.random(count) < 0.15)))
        near = np.clip(boxes + generator.integers(-1, 2, boxes.shape), 0, SIZE)
        some = np.concatenate([near, near, random_boxes(generator, 130 if image == 5 else 3)])
        labels = np.concatenate([classes, classes, generator.integers(0, NUM_CLASSES, len(some) - 2 * count)])
        scores = np.round(generator.random(len(some)) * np.where(np.arange(len(some)) < count, 1.0, 0.5), decimals)
        found.append((some, scores.astype(np.float32), labels))
    return wanted, found


WANTED, FOUND = made(np.random.default_rng(0))
_, DISTINCT = made(np.random.default_rng(0), decimals=7)
"""Without ties, which the library orders by the position of each copy of an image."""


def outputs(boxes: Any, scores: Any, labels: Any) -> dict[str, Any]:
    """What a model returns that decodes by itself: boxes, and the score of one class for each, the others -1."""
    spread = np.full((len(boxes), NUM_CLASSES), -1.0, np.float32)
    spread[np.arange(len(boxes)), labels] = scores
    return {"boxes": boxes[None], "scores": spread[None]}


def library(images: list[int], detected: Any = FOUND) -> COCOeval:
    """pycocotools' evaluation of these images, any of them several times."""
    annotations: list[dict[str, Any]] = []
    results: list[dict[str, Any]] = []
    for number, image in enumerate(images):
        one = WANTED[image]
        for box, label, crowd in zip(one.boxes, one.classes, one.crowd, strict=True):
            extent = [box[0], box[1], box[2] - box[0], box[3] - box[1]]
            common = {"image_id": number, "category_id": int(label), "bbox": extent}
            area = float(extent[2] * extent[3])
            annotations.append({**common, "id": len(annotations) + 1, "iscrowd": int(crowd), "area": area})
        best = np.argsort(-detected[image][1], kind="stable")[:100]
        for box, score, label in zip(*(values[best] for values in detected[image]), strict=True):
            extent = [box[0], box[1], box[2] - box[0], box[3] - box[1]]
            results.append({"image_id": number, "category_id": int(label), "bbox": extent, "score": float(score)})
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO()
        truth.dataset = {
            "info": {},
            "images": [{"id": number} for number in range(len(images))],
            "categories": [{"id": label} for label in range(NUM_CLASSES)],
            "annotations": annotations,
        }
        truth.createIndex()
        evaluation = COCOeval(truth, truth.loadRes(results), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return evaluation


def records(detected: Any = FOUND) -> dict[str, Any]:
    found = [record(OPTIONS, outputs(*detected[i]), WANTED[i], [IMAGE]) for i in range(NUM_IMAGES)]
    return {name: np.stack([one[name] for one in found]) for name in found[0]}


def test_metrics_are_the_librarys() -> None:
    once = np.ones((1, NUM_IMAGES))
    found, expected = measure(OPTIONS, records(), once), library(list(range(NUM_IMAGES)))
    assert found["map"] == pytest.approx(expected.stats[0], abs=1e-9)
    assert found["map_50"] == pytest.approx(expected.stats[1], abs=1e-9)
    assert 0.1 < expected.stats[0] < 0.9
    for label in range(NUM_CLASSES):
        areas = box_matching.average_precisions(records(), label, once)[0]
        precision = expected.eval["precision"][:, :, label, 0, 2]
        assert np.nan_to_num(areas, nan=-1.0) == pytest.approx(precision.mean(axis=1), abs=1e-9)
    assert np.isnan(areas).all(), "the last class has no object"


def test_draws_are_what_the_library_says_of_the_images_drawn() -> None:
    drawn = np.random.default_rng(1).integers(0, NUM_IMAGES, (3, NUM_IMAGES))
    weights = np.stack([np.bincount(row, minlength=NUM_IMAGES) for row in drawn]).astype(float)
    found = measure(OPTIONS, records(DISTINCT), weights)
    for number, row in enumerate(drawn):
        expected = library(sorted(row), DISTINCT)
        assert found["map"][number] == pytest.approx(expected.stats[0], abs=1e-9)
        assert found["map_50"][number] == pytest.approx(expected.stats[1], abs=1e-9)


def test_intervals_drops_and_classes() -> None:
    worse = [(boxes + 2, scores, labels) for boxes, scores, labels in FOUND]
    measured = judged(
        "detection", [_one(*one) for one in FOUND], WANTED, [IMAGE[0]] * NUM_IMAGES, [_one(*one) for one in worse],
        decoder=OPTIONS.decoder,
    )  # fmt: skip
    found = measured.metrics
    assert found["float_map_low"] < found["float_map"] < found["float_map_high"]
    assert found["quantization_drop"] == found["float_map"] - found["quantized_map"] > 0.1
    assert found["quantization_drop_map_50"] > 0
    assert set(measured.draws) >= {"float_map", "quantized_map_50", "quantization_drop"}
    assert found["classes.0.float_average_precision"] > 0.2
    assert "classes.3.float_average_precision" not in found, "it has no object"
    assert found["primary_metric"] == "map"


def _one(boxes: Any, scores: Any, labels: Any) -> Any:
    """Boxes and scores in one row, filled up to 160 rows."""
    values = outputs(boxes, scores, labels)
    rows = np.concatenate([values["boxes"][0], values["scores"][0]], axis=1)
    return np.pad(rows, ((0, 160 - len(rows)), (0, 0)), constant_values=-1.0)


def test_arrays_are_targets_too() -> None:
    target = np.array([[4, 4, 20, 20, 1], [30, 30, 50, 60, 0], [0, 0, 0, 0, -1]], np.float32)
    values = outputs(target[:2, :4], np.array([0.9, 0.8], np.float32), np.array([1, 0]))
    found = record(OPTIONS, values, target, [IMAGE])
    assert found["matched"][:3].tolist() == [1023, 1023, 0]
    assert found["objects"].tolist() == [1, 1, 0, 0]


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (3, "needs boxes as target, and the dataset has int"),
        (np.zeros((2, 4)), r"needs boxes as target, and the dataset has an array \[2, 4\]"),
        (np.array([[9.0, 0, 3, 3, 0]]), "right is not beyond their left"),
        (np.array([[0.0, 0, 3, 3, 0.5]]), "class is no integer"),
        (np.array([[0.0, 0, 3, 3, 7]]), "objects of the classes 7 ... 7, and the model 4 classes"),
    ],
)
def test_damaged_targets_are_refused(target: Any, message: str) -> None:
    with pytest.raises(LowerdeckError, match=message):
        record(OPTIONS, outputs(*FOUND[0]), target, [IMAGE])


def test_an_image_is_needed() -> None:
    with pytest.raises(LowerdeckError, match=r"needs an image .* and it is \[1, 8\]"):
        record(OPTIONS, outputs(*FOUND[0]), WANTED[0], [np.zeros((1, 8))])
    with pytest.raises(ValueError, match="from 1 to 1000"):
        Options(max_detections=0)


def test_decoders_are_found_by_place() -> None:
    assert set(tasks.source("detection").NESTED["decoder"].available()) == {"boxes", "ssd", "torchvision", "yolo"}  # type: ignore[attr-defined]


PARAMS = {
    "model": "custom",
    "task": "detection",
    "dataset": "random",
    "target": "xnnpack_cpu",
    "flavor": "default",
    "plugins": ["plugins.found"],
}
MODEL = {"options": {"factory": "lowerdeck.models.networks.resnet8:ResNet8"}, "input_shapes": [[1, 3, 32, 32]]}
OWN = '''"""A decoder of your own."""

from dataclasses import dataclass

from plugins.found.helper import nothing


@dataclass(frozen=True, kw_only=True)
class Options:
    """Its options."""

    side: int = 4
    """Pixels."""


def decode(options, outputs, size):
    return nothing(size)
'''


def composed(root: Path, decoder: Any, task: str = "detection", conf: Path = REPOSITORY / "conf") -> Any:
    """The configuration with a decoder, in a folder with a package of plug-ins."""
    package = root / "plugins" / "found"
    package.mkdir(parents=True, exist_ok=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").write_text("")
    (package / "own.py").write_text(OWN)
    (package / "helper.py").write_text("def nothing(size):\n    return None\n")
    overrides = {"model": MODEL, "task": {"options": {"decoder": decoder}}}
    (root / "params.yaml").write_text(json.dumps({**PARAMS, "task": task, "overrides": overrides}))
    with chdir(root):
        return compose(root / "params.yaml", conf)


def test_options_of_the_decoder_are_completed(tmp_path: Path) -> None:
    config = composed(tmp_path, {"name": "yolo", "formula": "x"})
    assert config.task.options["decoder"]["iou_threshold"] == 0.5
    assert config.task.options["max_detections"] == 100
    closures = stage_closures(dataclasses.asdict(config), Sources.of_workspace(REPOSITORY))
    for stage in ("export", "evaluate"):
        assert "lowerdeck.tasks.decoders.yolo" in closures[stage]
        assert "lowerdeck.tasks.decoders.ssd" not in closures[stage]


@pytest.mark.parametrize(
    ("decoder", "message"),
    [
        ({"name": "yollo"}, r"task.options.decoder.name: there is no such module .*\n.*\n.*\n *did you mean 'yolo'"),
        ({"formula": "x"}, "task.options.decoder.formula: there is no such key"),
        ({"name": 5, "formula": "x"}, "task.options.decoder.name: has to be the name of a module"),
        ({"name": "yolo", "formula": "v9"}, "task.options.decoder.formula: not one of the values"),
        ({"name": "ssd", "grids": [[2, 2]]}, "task.options.decoder.anchors: is missing"),
        ({"name": "boxes", "score_treshold": 0.5}, "task.options.decoder.score_treshold: there is no such key"),
        ({"name": "elsewhere.own"}, "task.options.decoder.name"),
    ],
)
def test_a_wrong_decoder_is_refused_by_compose(tmp_path: Path, decoder: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        composed(tmp_path, decoder)


def test_another_decoder_takes_over_no_options_of_the_one_in_conf(tmp_path: Path) -> None:
    conf = Path(shutil.copytree(REPOSITORY / "conf", tmp_path / "conf"))
    decoder = "{name: yolo, formula: v3, anchors: [[[1, 1]], [[2, 2]], [[3, 3]]]}"
    (conf / "task/mine.yaml").write_text(f"name: mine\nsource: detection\noptions:\n  decoder: {decoder}\n")
    assert composed(tmp_path, {"name": "boxes"}, "mine", conf).task.options["decoder"]["name"] == "boxes"
    merged = composed(tmp_path, {"score_threshold": 0.25}, "mine", conf).task.options["decoder"]
    assert (merged["formula"], merged["score_threshold"]) == ("v3", 0.25)


def test_a_decoder_of_a_plug_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [name for name in sys.modules if name.partition(".")[0] == "plugins"]:
        monkeypatch.delitem(sys.modules, name)
    config = composed(tmp_path, {"name": "plugins.found.own", "side": 9})
    assert config.task.options["decoder"] == {"name": "plugins.found.own", "side": 9}
    roots = {"stages": REPOSITORY, "lowerdeck": REPOSITORY / "pipeline", "plugins": tmp_path}
    assert "plugins.found.helper" in stage_closures(dataclasses.asdict(config), Sources(roots=roots))["evaluate"]
