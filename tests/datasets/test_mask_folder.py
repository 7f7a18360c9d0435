"""Folders of images and masks: pairs by name, names of classes, and every fault at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.datasets import mask_folder

SHAPES = [[1, 3, 8, 8]]


def stored(folder: Path, **options: Any) -> mask_folder.Options:
    for split in ("calibration", "evaluation"):
        for kind in ("images", "masks"):
            (folder / split / kind).mkdir(parents=True)
        for number in range(3):
            pixels = np.zeros((8, 16), dtype=np.uint8)
            pixels[:, 8:] = number + 1
            Image.fromarray(pixels * 40).convert("RGB").save(folder / split / "images" / f"{number}.png")
            Image.fromarray(pixels).save(folder / split / "masks" / f"{number}.png")
    (folder / "names.txt").write_text("ground\ncar\n\nbus\nbike\n")
    return mask_folder.Options(root=str(folder), **options)


@pytest.mark.parametrize("fit", ["crop", "stretch", "letterbox"])
def test_masks_are_placed_like_their_images(tmp_path: Path, fit: str) -> None:
    dataset = mask_folder.load(stored(tmp_path, fit=fit, interpolation="nearest"), SHAPES, 0)
    for index in range(3):
        sample = dataset.evaluation[index]
        seen = np.where(sample.target == -1, 0, sample.target)
        assert np.array_equal(seen, np.round(sample.inputs[0][0, 0].numpy() * 255 / 40))
        assert (sample.target == -1).any() == (fit == "letterbox")
        assert np.array_equal(dataset.evaluation.target(index), sample.target)  # type: ignore[attr-defined]


def test_a_folder_of_folders_is_read_whole(tmp_path: Path) -> None:
    """Images in folders below were left out without a word."""
    options = stored(tmp_path)
    before = mask_folder.fingerprint(options)
    for kind in ("images", "masks"):
        for place in ("street", ".cache"):
            (tmp_path / "evaluation" / kind / place).mkdir()
        files = [tmp_path / "evaluation" / kind / place for place in ("0.png", "street/0.png", ".cache/9.png")]
        for path in files[1:]:
            path.write_bytes(files[0].read_bytes())
    split = mask_folder.load(options, SHAPES, 0).evaluation
    assert sorted(split.origin(index) for index in range(len(split))) == [  # type: ignore[attr-defined]
        str(tmp_path / "evaluation" / "images" / name) for name in ("0.png", "1.png", "2.png", "street/0.png")
    ]
    assert mask_folder.fingerprint(options) != before
    (tmp_path / "evaluation" / "masks" / "street" / "0.png").rename(tmp_path / "evaluation" / "masks" / "street.png")
    with pytest.raises(LowerdeckError, match=r"image street/0\.png has no mask in masks\n.*street\.png has no image"):
        mask_folder.fingerprint(options)


@pytest.mark.parametrize(("images", "masks"), [(".", "masks"), ("images", "images/masks"), ("masks/jpg", "masks")])
def test_one_folder_may_lie_in_the_other(tmp_path: Path, images: str, masks: str) -> None:
    """The images were taken for masks without an image, or the masks for images."""
    for folder in (tmp_path / "calibration", tmp_path / "evaluation"):
        for kind in (images, masks):
            (folder / kind).mkdir(parents=True, exist_ok=True)
            Image.new("L", (8, 8)).save(folder / kind / "0.png")
    options = mask_folder.Options(root=str(tmp_path), images=images, masks=masks)
    assert len(mask_folder.load(options, SHAPES, 0).evaluation) == 1


def test_linked_folders_count(tmp_path: Path) -> None:
    """They were left out without a word."""
    options = stored(tmp_path / "data")
    stored(tmp_path / "more")
    for kind in ("images", "masks"):
        (tmp_path / "data" / "evaluation" / kind / "street").symlink_to(tmp_path / "more" / "evaluation" / kind)
    assert len(mask_folder.load(options, SHAPES, 0).evaluation) == 6


def test_masks_that_are_stored_with_losses_are_refused(tmp_path: Path) -> None:
    """Indices in a .jpg became those of other classes."""
    options = stored(tmp_path)
    for number in range(3):
        path = tmp_path / "evaluation" / "masks" / f"{number}.png"
        Image.open(path).save(path.with_suffix(".jpg"))
        path.unlink()
    with pytest.raises(LowerdeckError, match=r"\.jpg is stored as JPEG, which changes class indices; .* e\.g\. as PNG"):
        mask_folder.load(options, SHAPES, 0).evaluation[0]
    for number in range(3):
        path = tmp_path / "evaluation" / "masks" / f"{number}.jpg"
        Image.open(path).save(path.with_suffix(".tif"), compression="jpeg")
        path.unlink()
    with pytest.raises(LowerdeckError, match=r"\.tif is stored as TIFF \(jpeg\), which changes"):
        mask_folder.load(options, SHAPES, 0).evaluation[0]


def test_names_of_classes(tmp_path: Path) -> None:
    options = stored(tmp_path, class_names=str(tmp_path / "names.txt"))
    dataset = mask_folder.load(options, SHAPES, 0)
    assert (dataset.num_classes, dataset.class_names) == (4, ("ground", "car", "bus", "bike"))
    before = mask_folder.fingerprint(options)
    (tmp_path / "names.txt").write_text("ground\ncar\nbus\ntrain\n")
    assert mask_folder.fingerprint(options) != before
    (tmp_path / "names.txt").unlink()
    with pytest.raises(LowerdeckError, match="does not exist; correct the path, or set it to null"):
        mask_folder.load(options, SHAPES, 0)


def test_everything_that_is_wrong_is_listed_at_once(tmp_path: Path) -> None:
    options = stored(tmp_path)
    (tmp_path / "evaluation" / "masks" / "0.png").unlink()
    (tmp_path / "evaluation" / "masks" / "1.png").rename(tmp_path / "evaluation" / "masks" / "9.png")
    with pytest.raises(LowerdeckError) as caught:
        mask_folder.fingerprint(options)
    for part in ("has 3 faults", "image 0.png has no mask", "image 1.png has no mask", "mask 9.png has no image"):
        assert part in str(caught.value)
    (tmp_path / "evaluation" / "images" / "notes.txt").write_text("x")
    (tmp_path / "evaluation" / "images" / "2.jpg").write_text("x")
    with pytest.raises(LowerdeckError, match=r"2 faults:\n  notes.txt is no image.*\n  2.* and 2.* have the same name"):
        mask_folder.fingerprint(options)


def test_calibration_needs_no_masks_and_masks_have_the_size_of_their_image(tmp_path: Path) -> None:
    options = stored(tmp_path)
    for path in (tmp_path / "calibration" / "masks").iterdir():
        path.unlink()
    (tmp_path / "calibration" / "masks").rmdir()
    Image.new("L", (4, 4)).save(tmp_path / "evaluation" / "masks" / "1.png")
    dataset = mask_folder.load(options, SHAPES, 0)
    assert dataset.calibration[0].target is None
    with pytest.raises(LowerdeckError, match=r"1\.png has 4x4 pixels and its image 16x8"):
        [dataset.evaluation[index] for index in range(3)]
    with pytest.raises(LowerdeckError, match="does not exist"):
        mask_folder.fingerprint(mask_folder.Options(root=str(tmp_path / "none")))
