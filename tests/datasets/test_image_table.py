"""CSV lists of images with classes, masks and numbers; everything that is wrong is listed at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.contracts.samples import Sample, Split
from lowerdeck.datasets import image_table

SHAPES = [[1, 3, 8, 8]]


def table(folder: Path, text: str, **options: Any) -> image_table.Options:
    for number in range(2):
        pixels = np.zeros((8, 16, 3), dtype=np.uint8)
        pixels[:, 8:] = 100 * (number + 1)
        Image.fromarray(pixels).save(folder / f"{number}.png")
        mask = np.zeros((8, 16), dtype=np.uint8)
        mask[:, 8:] = number + 1
        palette = Image.fromarray(mask, "P")
        palette.putpalette([0, 0, 0, 255, 0, 0, 0, 255, 0])
        palette.save(folder / f"mask{number}.png")
    (folder / "list.csv").write_text(text)
    return image_table.Options(calibration=str(folder / "list.csv"), evaluation=str(folder / "list.csv"), **options)


def samples(split: Split) -> list[Sample]:
    return [split[index] for index in range(len(split))]


def test_classes_by_name_and_by_index(tmp_path: Path) -> None:
    named = table(tmp_path, "image,kind\n0.png,cat\n1.png,dog\n", label="kind", classes=["dog", "cat"])
    dataset = image_table.load(named, SHAPES, 0)
    assert (dataset.num_classes, sorted(sample.expected for sample in samples(dataset.evaluation))) == (2, [0, 1])
    assert image_table.target_kind(named) == "class"
    numbered = table(tmp_path, "image,kind\n0.png,4\n1.png,0\n", label="kind")
    assert image_table.load(numbered, SHAPES, 0).num_classes == 5


def test_masks_are_cropped_like_their_images(tmp_path: Path) -> None:
    options = table(tmp_path, "image,m\n0.png,mask0.png\n1.png,mask1.png\n", mask="m")
    for sample in samples(image_table.load(options, SHAPES, 0).evaluation):
        (pixels,), mask = sample.inputs, sample.target
        assert mask.shape == (8, 8)
        assert np.array_equal(mask > 0, pixels[0, 0].numpy() > 0)
        assert set(np.unique(mask)) <= {0, 1, 2}
    assert image_table.target_kind(options) == "mask"


def test_numbers_and_the_fingerprint_of_all_files(tmp_path: Path) -> None:
    options = table(tmp_path, "image,x,y\n0.png,0.5,1\n1.png,2,-3\n", values=["x", "y"])
    found = sorted(sample.target.tolist() for sample in samples(image_table.load(options, SHAPES, 0).evaluation))
    assert found == [[0.5, 1.0], [2.0, -3.0]]
    before = image_table.fingerprint(options)
    Image.new("RGB", (8, 8)).save(tmp_path / "1.png")
    assert image_table.fingerprint(options) != before


@pytest.mark.parametrize(
    ("text", "options", "messages"),
    [
        ("image,c\n0.png,1\nno.png,x\n", {"label": "c"}, ["2 faults", "row 3: image is 'no.png'", "row 3: c is 'x'"]),
        ("image,c\n0.png,bird\n", {"label": "c", "classes": ["cat"]}, ["must be one of cat"]),
        ("image,x\n0.png,nan\n", {"values": ["x"]}, ["row 2: x is 'nan'; it must be a finite number"]),
        ("image\n0.png\n", {"label": "kind"}, ["lacks the columns kind", "it has: image"]),
        ("image\n", {}, ["has no rows"]),
        ("image,c\n\n0.png,1\n\n1.png,x\n", {"label": "c"}, ["row 5: c is 'x'"]),
        ("image, c\n0.png,1\n", {"label": "c"}, ["it has: image,  c; remove the spaces around its names"]),
        ("image;c\n0.png;1\n", {"label": "c"}, ["separate the columns with commas instead of ';'"]),
    ],
)
def test_faults_are_listed(tmp_path: Path, text: str, options: dict[str, Any], messages: list[str]) -> None:
    with pytest.raises(LowerdeckError) as caught:
        image_table.fingerprint(table(tmp_path, text, **options))
    assert all(message in str(caught.value) for message in messages), str(caught.value)


def test_another_encoding_is_named(tmp_path: Path) -> None:
    options = table(tmp_path, "image\n0.png\n")
    (tmp_path / "list.csv").write_bytes("image\nGrün.png\n".encode("latin-1"))
    with pytest.raises(LowerdeckError, match=r"list\.csv cannot be read as CSV.*save it as UTF-8"):
        image_table.fingerprint(options)


def test_a_mask_of_another_size_than_its_image_is_refused(tmp_path: Path) -> None:
    options = table(tmp_path, "image,m\n0.png,mask0.png\n", mask="m")
    Image.new("L", (8, 16)).save(tmp_path / "mask0.png")
    with pytest.raises(LowerdeckError, match=r"mask0\.png has 8x16 pixels and its image 16x8"):
        image_table.load(options, SHAPES, 0).evaluation[0]


def test_a_mask_of_several_channels_is_refused(tmp_path: Path) -> None:
    options = table(tmp_path, "image,m\n0.png,1.png\n", mask="m")
    with pytest.raises(LowerdeckError, match="a mask has mode RGB; allowed are images of one channel"):
        image_table.load(options, SHAPES, 0).evaluation[0]


@pytest.mark.parametrize(
    "options", [{"label": "a", "mask": "b"}, {"classes": ["a"]}, {"label": "a", "classes": ["yes", "no", "yes"]}]
)
def test_options_are_checked(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="name"):
        image_table.Options(calibration="a", evaluation="b", **options)
