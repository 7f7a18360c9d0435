"""lowerdeck.datasets.image_folder: layout, labels, geometry, and everything that can be wrong with a folder."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from lowerdeck.contracts.errors import ConfigurationError, LowerdeckError
from lowerdeck.contracts.samples import Split
from lowerdeck.datasets import image_folder
from lowerdeck.datasets.splits import LoadedDataset

SHAPES = [[1, 3, 8, 8]]


def write_image(path: Path, colour: tuple[int, int, int], size: tuple[int, int] = (8, 8)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two classes, three images each and split; red tells the class, green the image, blue the split."""
    for blue, split in enumerate(("calibration", "evaluation")):
        for red, name in enumerate(("dog", "cat")):
            for green in range(3):
                write_image(tmp_path / split / name / f"{green}.png", (red * 100, green, blue))
    return tmp_path


def load(root: Path, shapes: list[list[int]] = SHAPES, **options: Any) -> LoadedDataset:
    return image_folder.load(image_folder.Options(root=str(root), **options), shapes, seed=0)


def image_named(name: str, split: Split) -> torch.Tensor:
    """float32 [1 x c x h x w] of the file of this name."""
    assert isinstance(split, image_folder.ImageFileSplit)
    return next(split[i].inputs[0] for i in range(len(split)) if f"/{name}." in split.origin(i))


def test_files_that_are_no_images_are_refused_before_the_build(tmp_path: Path) -> None:
    for split in ("calibration", "evaluation"):
        for name in ("a", "b"):
            (tmp_path / split / name).mkdir(parents=True)
            Image.new("RGB", (8, 8)).save(tmp_path / split / name / "1.png")
    (tmp_path / "evaluation" / "a" / "2.png").touch()
    (tmp_path / "evaluation" / "b" / "3.png").symlink_to("gone.png")
    with pytest.raises(LowerdeckError, match=r"2 faults:\n.*a/2\.png cannot be decoded.*\n.*b/3\.png cannot"):
        image_folder.fingerprint(image_folder.Options(root=str(tmp_path)))


def test_classes_are_the_sorted_folder_names(root: Path) -> None:
    dataset = load(root)
    assert dataset.num_classes == 2
    for split in (dataset.calibration, dataset.evaluation):
        assert len(split) == 6
        for sample in iter(split):
            is_cat = round(float(sample.inputs[0][0, 0, 0, 0]) * 255) == 100
            assert sample.label == (0 if is_cat else 1)


def test_calibration_may_be_flat_and_then_has_no_labels(root: Path) -> None:
    shutil.rmtree(root / "calibration")
    for green in range(3):
        write_image(root / "calibration" / f"{green}.png", (0, green, 9))
    dataset = load(root)
    assert [sample.label for sample in iter(dataset.calibration)] == [None] * 3
    assert {sample.label for sample in iter(dataset.evaluation)} == {0, 1}


def test_calibration_from_another_folder(root: Path, tmp_path: Path) -> None:
    (root / "calibration").rename(tmp_path / "train")
    with pytest.raises(LowerdeckError, match=r"calibration does not exist"):
        load(root)
    dataset = load(root, calibration=str(tmp_path / "train"))
    assert len(dataset.calibration) == 6


def test_images_are_decoded_only_when_asked_for(root: Path) -> None:
    broken = root / "evaluation" / "cat" / "0.png"
    broken.write_bytes(broken.read_bytes()[:40])
    dataset = load(root)
    digests = [dataset.evaluation.digest(index) for index in range(6)]
    assert len(set(digests)) == 6
    with pytest.raises(LowerdeckError, match=r"0\.png cannot be decoded"):
        list(iter(dataset.evaluation))


def test_a_text_chunk_that_unpacks_to_gigabytes_is_not_unpacked(root: Path) -> None:
    bomb = PngInfo()
    bomb.add_text("Comment", "x" * 100_000_000, zip=True)
    path = root / "evaluation" / "cat" / "0.png"
    Image.new("RGB", (8, 8)).save(path, pnginfo=bomb)
    assert path.stat().st_size < 200_000
    with pytest.raises(LowerdeckError, match=r"0\.png cannot be decoded: Decompressed data too large"):
        list(iter(load(root).evaluation))


def test_names_that_are_not_utf_8_are_refused(root: Path) -> None:
    (root / "evaluation" / "cat" / "0.png").rename(root / "evaluation" / "cat" / os.fsdecode(b"caf\xe9.png"))
    with pytest.raises(LowerdeckError, match=r"cat/caf\\udce9\.png is not UTF-8; rename it"):
        image_folder.fingerprint(image_folder.Options(root=str(root)))


def test_resize_and_centre_crop(root: Path) -> None:
    """A wide image: red to the left, green in the middle, blue to the right; the middle is what is left."""
    pixels = np.zeros((16, 48, 3), dtype=np.uint8)
    for channel in range(3):
        pixels[:, channel * 16 : (channel + 1) * 16, channel] = 255
    Image.fromarray(pixels).save(root / "evaluation" / "cat" / "wide.png")
    evaluation = load(root, interpolation="nearest").evaluation
    wide = image_named("wide", evaluation)[0]
    assert wide.shape == (3, 8, 8)
    assert wide[1].min() == 1
    assert wide[0].max() == 0
    assert wide[2].max() == 0
    # Twice the crop: a window of 8 pixels of the 16 that are green.
    bigger = load(root, resize=16, interpolation="nearest").evaluation
    assert image_named("wide", bigger)[0, 1].min() == 1


@pytest.mark.parametrize("size", [(3, 9), (9, 3), (8, 8), (301, 7), (7, 301), (1, 1)])
@pytest.mark.parametrize("resize", [None, 8, 11])
def test_any_size_of_image_gives_the_models_input(root: Path, size: tuple[int, int], resize: int | None) -> None:
    write_image(root / "evaluation" / "cat" / "odd.png", (200, 200, 200), size)
    for shape in ([1, 3, 8, 8], [1, 3, 8, 5], [1, 1, 4, 8]):
        assert all(
            list(sample.inputs[0].shape) == shape for sample in iter(load(root, [shape], resize=resize).evaluation)
        )


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "1", "CMYK"])
def test_any_mode_becomes_grey_or_rgb(root: Path, mode: str) -> None:
    suffix = "tif" if mode == "CMYK" else "png"
    Image.new("RGB", (8, 8), (255, 255, 255)).convert(mode).save(root / "evaluation" / "cat" / f"mode.{suffix}")
    for channels in (1, 3):
        evaluation = load(root, [[1, channels, 8, 8]]).evaluation
        assert image_named("mode", evaluation).min() == 1


def test_resize_smaller_than_the_crop(root: Path) -> None:
    with pytest.raises(
        ConfigurationError, match=r"resize is 7, the model's input is 8x8 pixels; resize must be at least 8"
    ):
        load(root, resize=7)


def test_options_that_cannot_be_meant() -> None:
    with pytest.raises(ValueError, match=r"interpolation is 'cubic'; allowed are nearest, bilinear"):
        image_folder.Options(root="x", interpolation="cubic")
    with pytest.raises(ValueError, match=r"resize is 0"):
        image_folder.Options(root="x", resize=0)


def test_fingerprint_covers_names_and_content(root: Path) -> None:
    options = image_folder.Options(root=str(root))
    prints = [image_folder.fingerprint(options)]
    (root / "evaluation" / "cat" / "0.png").rename(root / "evaluation" / "cat" / "7.png")
    prints.append(image_folder.fingerprint(options))
    write_image(root / "evaluation" / "cat" / "7.png", (1, 2, 3))
    prints.append(image_folder.fingerprint(options))
    (root / "evaluation" / ".DS_Store").write_text("clutter")
    assert image_folder.fingerprint(options) == prints[-1]
    assert len(set(prints)) == 3


def test_classes_have_to_agree(root: Path) -> None:
    (root / "calibration" / "dog").rename(root / "calibration" / "wolf")
    with pytest.raises(LowerdeckError, match=r"same class folders; only in one of them: dog, wolf"):
        load(root)


def test_evaluation_needs_classes(root: Path) -> None:
    for path in list((root / "evaluation").glob("*/*")):
        path.rename(root / "evaluation" / f"{path.parent.name}{path.name}")
    shutil.rmtree(root / "evaluation" / "cat")
    shutil.rmtree(root / "evaluation" / "dog")
    with pytest.raises(LowerdeckError, match=r"into a folder named after its class"):
        load(root)


def test_files_beside_class_folders(root: Path) -> None:
    write_image(root / "calibration" / "loose.png", (0, 0, 0))
    with pytest.raises(LowerdeckError, match=r"next to or instead of class folders \(loose\.png\)"):
        load(root)


def test_files_that_are_no_images(root: Path) -> None:
    (root / "evaluation" / "cat" / "notes.txt").write_text("")
    with pytest.raises(LowerdeckError, match=r"1 files that are not images \(cat/notes\.txt\); allowed are \.bmp"):
        load(root)


def test_empty_class_and_empty_split(root: Path) -> None:
    for path in (root / "evaluation" / "cat").iterdir():
        path.unlink()
    with pytest.raises(LowerdeckError, match=r"no images in .*evaluation for cat"):
        load(root)
    shutil.rmtree(root / "evaluation")
    (root / "evaluation").mkdir()
    with pytest.raises(LowerdeckError, match=r"no images in .*evaluation; put some there"):
        load(root)


def test_images_below_subfolders_count(root: Path) -> None:
    write_image(root / "evaluation" / "cat" / "indoors" / "0.png", (7, 7, 7))
    assert len(load(root).evaluation) == 7


def test_linked_folders_count_unless_they_lead_back(root: Path, tmp_path: Path) -> None:
    """They were left out without a word."""
    cats, more = root / "evaluation" / "cat", tmp_path / "more"
    write_image(more / "indoors" / "0.png", (7, 7, 7))
    for name in ("day", "night"):
        (cats / name).symlink_to(more)
    for folder in (cats, more):
        for name, target in (("back", cats), ("up", root), ("self", folder)):
            (folder / name).symlink_to(target)
    found = image_folder.files_below(cats)
    assert found == [cats / name for name in ("0.png", "1.png", "2.png", "day/indoors/0.png", "night/indoors/0.png")]
    assert len(load(root).evaluation) == 8
