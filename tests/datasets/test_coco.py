"""COCO files: boxes and masks in the model's pixels, as pycocotools draws them, and every fault at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageDraw
from pycocotools import mask as library

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.datasets import coco, coco_json

SHAPES = [[1, 3, 16, 16]]
CATEGORIES = [{"id": 7, "name": "ball"}, {"id": 3, "name": "box"}]
BOX = {"id": 1, "image_id": 10, "category_id": 7, "bbox": [4, 8, 8, 12], "area": 96, "iscrowd": 0}


def stored(folder: Path, annotations: list[dict[str, Any]], *, images: Any = None, **options: Any) -> coco.Options:
    """A folder with two images of 32x24 pixels; the box of the first annotation is white, the rest black."""
    for name in ("a.png", "b.png"):
        picture = Image.new("RGB", (32, 24))
        ImageDraw.Draw(picture).rectangle((4, 8, 11, 19), fill="white")
        picture.save(folder / name)
    listed = [{"id": 10, "file_name": "a.png", "width": 32, "height": 24}]
    listed += [{"id": 11, "file_name": "b.png", "width": 32, "height": 24}]
    content = {"images": images or listed, "annotations": annotations, "categories": CATEGORIES}
    (folder / "list.json").write_text(json.dumps(content))
    return coco.Options(calibration=str(folder / "list.json"), evaluation=str(folder / "list.json"), **options)


@pytest.mark.parametrize("fit", ["stretch", "letterbox", "crop"])
def test_boxes_lie_where_the_object_is_in_the_input(tmp_path: Path, fit: str) -> None:
    options = stored(tmp_path, [BOX], fit=fit, interpolation="nearest")
    split = coco.load(options, [[1, 3, 48, 48]], 0).evaluation
    (sample,) = (split[i] for i in range(2) if len(split.target(i).boxes))  # type: ignore[attr-defined]
    rows, columns = np.nonzero(sample.inputs[0][0, 0].numpy() > 0.5)
    seen = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
    assert sample.target.boxes[0] == pytest.approx(seen, abs=1)
    assert (sample.target.classes.tolist(), sample.target.crowd.tolist()) == ([1], [False])


def test_classes_are_positions_or_ids_with_their_names(tmp_path: Path) -> None:
    dataset = coco.load(stored(tmp_path, [BOX]), SHAPES, 0)
    assert (dataset.num_classes, dataset.class_names) == (2, ("box", "ball"))
    assert coco.target_kind(stored(tmp_path, [BOX])) == "boxes"
    dataset = coco.load(stored(tmp_path, [BOX], category_ids=True), SHAPES, 0)
    assert (dataset.num_classes, dataset.class_names[3], dataset.class_names[7]) == (8, "box", "ball")


def test_ids_and_sizes_that_a_table_wrote_as_floats(tmp_path: Path) -> None:
    """pandas writes 1.0 where a column has gaps, and `there is no category 1.0` was no help."""
    images = [{"id": 10.0, "file_name": "a.png", "width": 32.0, "height": 24.0}]
    options = stored(tmp_path, [BOX | {"id": 1.0, "image_id": 10.0, "category_id": 7.0}], images=images)
    assert coco.load(options, SHAPES, 0).evaluation.target(0).classes.tolist() == [1]  # type: ignore[attr-defined]
    for wrong in (7.5, True, "7", [7], float("inf")):
        with pytest.raises(LowerdeckError, match="annotation 1: there is no category"):
            coco.load(stored(tmp_path, [BOX | {"category_id": wrong}]), SHAPES, 0)


def test_crowds_and_run_lengths_that_a_table_wrote(tmp_path: Path) -> None:
    """A gap in the column was a crowd, and runs of 768.0 pixels were `counts of None pixels`."""
    for given, is_crowd in ((0.0, False), (1.0, True), (False, False), (True, True), (None, False), (np.nan, False)):
        options = stored(tmp_path, [BOX | {"iscrowd": given}])
        assert coco.load(options, SHAPES, 0).evaluation.target(0).crowd.tolist() == [is_crowd]  # type: ignore[attr-defined]
    for wrong in (2, 0.5, "0", [1], np.inf):
        with pytest.raises(LowerdeckError, match=r"annotation 1: iscrowd is .*; it must be 0 or 1"):
            coco.load(stored(tmp_path, [BOX | {"iscrowd": wrong}]), SHAPES, 0)
    runs = {"size": [24.0, 32.0], "counts": [10.0, 24.0, 734.0]}
    split = coco.load(stored(tmp_path, [BOX | {"segmentation": runs}], targets="masks"), [[1, 3, 24, 32]], 0).evaluation
    assert max(int((split[i].target == 2).sum()) for i in range(2)) == 24


@pytest.mark.parametrize("compressed", [False, True])
def test_masks_are_those_of_the_library(tmp_path: Path, compressed: bool) -> None:
    polygon = [4, 8, 12, 8, 12, 20, 4, 20]
    pixels = np.zeros((24, 32), np.uint8, order="F")
    pixels[2:6, 20:29] = 1
    runs: dict[str, Any] = library.encode(pixels)
    runs = {"size": [24, 32], "counts": runs["counts"].decode()}
    if not compressed:
        flat = pixels.ravel(order="F")
        changes = np.flatnonzero(np.diff(flat)) + 1
        runs["counts"] = np.diff(np.concatenate([[0], changes, [len(flat)]])).tolist()
    found = stored(
        tmp_path,
        [{**BOX, "segmentation": [polygon]}, {**BOX, "id": 2, "category_id": 3, "segmentation": runs, "area": 36},
         {**BOX, "id": 3, "iscrowd": 1, "segmentation": runs, "area": 9, "image_id": 11}],
        targets="masks", fit="stretch",
    )  # fmt: skip
    dataset = coco.load(found, [[1, 3, 24, 32]], 0)
    masks = sorted((dataset.evaluation[i].target for i in range(2)), key=lambda mask: mask.max())
    assert masks[0][2:6, 20:29].tolist() == [[1] * 9] * 4
    assert np.array_equal(masks[0] == 2, library.decode(library.merge(library.frPyObjects([polygon], 24, 32))))
    assert masks[0][0, 0] == 0
    assert np.array_equal(masks[1], pixels * 255), "a crowd is no class"
    assert (dataset.num_classes, dataset.class_names) == (3, ("background", "box", "ball"))


@pytest.mark.parametrize("radius", [3, 8, 20])
def test_outlines_are_not_part_of_an_object(radius: int) -> None:
    """A box of 8 pixels had 81 in place of 64; pycocotools rounds slanted edges otherwise, by half a pixel."""
    angles = np.sort(np.random.default_rng(radius).uniform(0, 2 * np.pi, 12))
    corners = 24 + radius * np.stack([np.cos(angles), np.sin(angles)], 1)
    outline = corners.round(2).ravel().tolist()
    one = coco_json.Annotated(box=(0, 0, 1, 1), label=0, is_crowd=False, area=1, outline=[outline])
    expected = library.decode(library.merge(library.frPyObjects([outline], 48, 48))).astype(bool)
    found = coco_json.pixels(one, 48, 48)
    assert (found & expected).sum() >= 0.95 * (found | expected).sum()
    assert found.sum() == pytest.approx(expected.sum(), rel=0.04)


def test_everything_that_is_wrong_is_listed_at_once(tmp_path: Path) -> None:
    damaged = [
        {**BOX, "id": 1, "bbox": [30, 8, 8, 12]},
        {**BOX, "id": 2, "bbox": [4, 8, 0, 12]},
        {**BOX, "id": 3, "category_id": 5},
        {**BOX, "id": 4, "image_id": 12},
        {**BOX, "id": 5, "bbox": [4, 8, 2]},
        {**BOX, "id": 5},
        {**BOX, "id": 6, "bbox": [4, 8, float("nan"), 3]},
        {**BOX, "id": 7, "category_id": [3]},
        {**BOX, "id": 8, "image_id": {}},
    ]
    images = [
        {"id": 10, "file_name": "a.png", "width": 32, "height": 24},
        {"id": 13, "file_name": "gone.png", "width": 32, "height": 24},
        {"id": 14, "file_name": "b.png", "width": 0, "height": 24},
        {"id": [15], "file_name": "b.png", "width": 32, "height": 24},
    ]
    with pytest.raises(LowerdeckError) as caught:
        coco.fingerprint(stored(tmp_path, damaged, images=images))
    message = str(caught.value)
    for part in (
        "list.json has 12 faults", "annotation 1: bbox [30, 8, 8, 12] reaches outside its image of 32x24 pixels",
        "annotation 2: bbox [4, 8, 0, 12] has no area", "annotation 3: there is no category 5",
        "annotation 4: there is no image 12", "annotation 5: bbox is [4, 8, 2]; it must be", "id 5 occurs twice",
        "annotation 6: bbox is [4, 8, nan, 3]", "image 13: there is no file 'gone.png'",
        "image 14: width and height are 0", "annotation 7: there is no category [3]",
        "annotation 8: there is no image {}", "images[3]: id [15] is not an integer",
    ):  # fmt: skip
        assert part in message


@pytest.mark.parametrize(
    ("segmentation", "message"),
    [
        (None, "is no list of polygons"),
        ([[1, 2, 3, 4]], "is no list of polygons"),
        ({"size": [32, 24], "counts": []}, r"has size \[32, 24\]; the image has \[24, 32\]"),
        ({"size": [24, 32], "counts": [5, 6]}, "has counts of 11 pixels; the image has 768"),
        ({"size": [24, 32], "counts": [767.5, 0.5]}, "has counts that are no list of whole numbers from 0 on"),
        ({"size": [24, 32], "counts": [-1, 769]}, "has counts that are no list of whole numbers from 0 on"),
        ({"size": [24, 32], "counts": 768}, "has counts that are no list of whole numbers from 0 on"),
    ],
)
def test_masks_need_outlines(tmp_path: Path, segmentation: Any, message: str) -> None:
    with pytest.raises(LowerdeckError, match=f"annotation 1: segmentation {message}"):
        coco.load(stored(tmp_path, [{**BOX, "segmentation": segmentation}], targets="masks"), SHAPES, 0)


@pytest.mark.parametrize("targets", ["boxes", "masks"])
def test_a_photo_that_is_stored_turned_is_refused(tmp_path: Path, targets: Any) -> None:
    """Boxes of the upright picture lay elsewhere in the stored one, which is what the model sees."""
    options = stored(tmp_path, [{**BOX, "segmentation": [[4, 8, 12, 8, 12, 20]]}], targets=targets)
    exif = Image.Exif()
    exif[0x0112] = 6
    for name in ("a.png", "b.png"):
        Image.new("RGB", (24, 32)).save(tmp_path / name, exif=exif)
    dataset = coco.load(options, SHAPES, 0)
    with pytest.raises(
        LowerdeckError, match=r"\.png has 32x24 pixels and its image 24x32.* is turned by its EXIF orientation"
    ):
        dataset.evaluation.target(0)  # type: ignore[attr-defined]
    Image.new("RGB", (16, 12)).save(tmp_path / "a.png")
    Image.new("RGB", (16, 12)).save(tmp_path / "b.png")
    with pytest.raises(LowerdeckError, match=r"32x24 pixels and its image 16x12.*pixels of the stored image"):
        dataset.evaluation.target(0)  # type: ignore[attr-defined]


def test_masks_have_no_class_255(tmp_path: Path) -> None:
    """Objects of that class did not count, as if they were crowds."""
    options = stored(tmp_path, [], targets="masks")
    content = json.loads((tmp_path / "list.json").read_text())
    content["categories"] = [{"id": number, "name": f"kind {number}"} for number in range(255)]
    (tmp_path / "list.json").write_text(json.dumps(content))
    with pytest.raises(LowerdeckError, match="has 255 classes; masks can have 254, because 255 is a pixel that does"):
        coco.load(options, SHAPES, 0)
    assert coco.load(coco.Options(**{**vars(options), "targets": "boxes"}), SHAPES, 0).num_classes == 255


def test_files_that_are_something_else(tmp_path: Path) -> None:
    options = stored(tmp_path, [BOX])
    (tmp_path / "list.json").write_text("[]")
    with pytest.raises(LowerdeckError, match="is no mapping with images"):
        coco.fingerprint(options)
    (tmp_path / "list.json").write_text("{")
    with pytest.raises(LowerdeckError, match="cannot be read as JSON"):
        coco.fingerprint(options)
    (tmp_path / "list.json").unlink()
    with pytest.raises(LowerdeckError, match="does not exist"):
        coco.fingerprint(options)


def test_the_fingerprint_covers_images(tmp_path: Path) -> None:
    options = stored(tmp_path, [BOX])
    before = coco.fingerprint(options)
    Image.new("RGB", (32, 24), "red").save(tmp_path / "b.png")
    assert coco.fingerprint(options) != before


def test_images_in_cocos_layout(tmp_path: Path) -> None:
    stored(tmp_path, [BOX])
    (tmp_path / "val2017").mkdir()
    for name in ("a.png", "b.png"):
        (tmp_path / name).rename(tmp_path / "val2017" / name)
    (tmp_path / "annotations").mkdir()
    path = tmp_path / "annotations" / "instances_val2017.json"
    (tmp_path / "list.json").rename(path)
    options = coco.Options(calibration=str(path), evaluation=str(path), images=str(tmp_path))
    assert len(coco.load(options, SHAPES, 0).evaluation) == 2
