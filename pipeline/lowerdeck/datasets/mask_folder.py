"""Images with a mask of class indices each: `calibration/` and `evaluation/` below one folder, each with two folders.

    root/evaluation/images/001.jpg      root/evaluation/masks/001.png

A mask has the name of its image, with any suffix, and lies in the same folder below `masks` as its image below
`images`, if it lies in one. Calibration needs no masks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.datasets import class_names, image_folder, preprocessing, splits
from lowerdeck.datasets.faults import raise_faults
from lowerdeck.fingerprints import data


@dataclass(frozen=True, kw_only=True)
class Options(preprocessing.ImageOptions):
    """Keys of `dataset.options`."""

    root: str
    """Folder with `calibration/` and `evaluation/` below it."""
    images: str = "images"
    """Name of the folders with images."""
    masks: str = "masks"
    """Name of the folders with masks: images of one channel whose values are class indices."""
    class_names: str | None = None
    """Path of a text file with the name of each class in a line; null for numbers."""


check = preprocessing.check


def target_kind(options: Options) -> str:
    """Masks."""
    return "mask"


def fingerprint(options: Options) -> str:
    """SHA-256 over all images and masks, and the names of classes.

    Raises:
        LowerdeckError: a folder or a mask is missing; the message lists all faults.
    """
    files = class_names.files(options.class_names)
    for split in ("calibration", "evaluation"):
        images, masks = _pairs(options, split)
        preprocessing.check_images(Path(options.root) / split, (*images, *masks))
        for kind, folder, paths in (("images", options.images, images), ("masks", options.masks, masks)):
            root = Path(options.root) / split / folder
            files |= {f"{split}/{kind}/{path.relative_to(root).as_posix()}": path for path in paths}
    class_names.read(options.class_names)
    return data.files_digest(files)


def load(options: Options, input_shapes: Sequence[Sequence[int]], seed: int) -> splits.LoadedDataset:
    """The images, placed in the model's input, and their masks alike.

    Args:
        options: see Options
        input_shapes: the model's, [[1, 1 or 3, h, w]]
        seed: fixes the order of the samples

    Raises:
        ConfigurationError: options that do not fit the model.
        LowerdeckError: a folder or a mask is missing; the message lists all faults.
    """
    prepare, shape = splits.image_preparation(options, input_shapes), preprocessing.image_shape(input_shapes)

    def split(name: str) -> image_folder.ImageFileSplit:
        images, masks = _pairs(options, name)

        def target(row: int) -> Any:
            decoded = preprocessing.decoded_mask(masks[row], images[row])
            return preprocessing.mask_pixels(decoded, shape[1:], options.resize, options.fit)

        labels = [None] * len(images)
        return image_folder.ImageFileSplit(images, labels, prepare, seed, target if masks else None)

    names = class_names.read(options.class_names)
    return splits.LoadedDataset(
        num_classes=len(names) or None,
        calibration=split("calibration"),
        evaluation=split("evaluation"),
        class_names=names,
        preprocessing=preprocessing.description(options, shape),
    )


def _pairs(options: Options, split: str) -> tuple[list[Path], list[Path]]:
    """Images and masks of a split, in the order of their names; no masks where calibration has no folder of them."""
    root = Path(options.root) / split
    images, masks = _by_stem(root / options.images, root / options.masks), {}
    if split == "evaluation" or (root / options.masks).is_dir():
        masks = _by_stem(root / options.masks, root / options.images)
        faults = [
            f"image {path.relative_to(root / options.images)} has no mask in {options.masks}"
            for stem, path in images.items()
            if stem not in masks
        ]
        faults += [
            f"mask {path.relative_to(root / options.masks)} has no image in {options.images}"
            for stem, path in masks.items()
            if stem not in images
        ]
        raise_faults(root, faults)
    return list(images.values()), [masks[stem] for stem in images if masks]


def _by_stem(folder: Path, other: Path) -> dict[Path, Path]:
    """Path below the folder without its suffix -> file; what is in the other one, which may lie in it, is left out."""
    if not folder.is_dir():
        raise LowerdeckError(f"image folder {folder} does not exist; correct dataset.options, or put the images there")
    files = [path.relative_to(folder) for path in image_folder.files_below(folder, without=other)]
    faults = [
        f"{path} is no image; allowed are {', '.join(image_folder.SUFFIXES)}"
        for path in files
        if path.suffix.lower() not in image_folder.SUFFIXES
    ]
    found = {path.with_suffix(""): path for path in files}
    faults += [
        f"{path} and {found[path.with_suffix('')]} have the same name"
        for path in files
        if found[path.with_suffix("")] != path
    ]
    if not files:
        faults.append("there are no images")
    raise_faults(folder, faults)
    return {stem: folder / path for stem, path in found.items()}
