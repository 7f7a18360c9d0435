"""Images with the objects in them, in COCO's format: boxes for detection, or masks that are drawn from their outlines.

One JSON file for each split, with `images`, `annotations` and `categories` (https://cocodataset.org/#format-data). The
index of a class is the position of its category among the sorted ids, or the id itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from lowerdeck.contracts.detection import Boxes
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.datasets import coco_json, image_folder, placement, preprocessing, splits
from lowerdeck.datasets.coco_json import Annotations
from lowerdeck.fingerprints import data

_NO_CLASS = 255
"""Pixels of crowds, and bars beside an image: task.options.ignore of the task segmentation."""


@dataclass(frozen=True, kw_only=True)
class Options(preprocessing.ImageOptions):
    """Keys of `dataset.options`."""

    calibration: str
    """Path of the JSON file with calibration images."""
    evaluation: str
    """Path of the JSON file with evaluation images."""
    training: str | None = None
    """Path of a JSON file with images for quantization-aware training; null to learn from the calibration images."""
    images: str | None = None
    """Folder of the images; null for that of each JSON file. An image `a.jpg` may also lie one folder below, where the
    folder has the name of the split in COCO's layout, e.g. val2017 for instances_val2017.json."""
    targets: Literal["boxes", "masks"] = "boxes"
    """`boxes` for detection; `masks` for segmentation, with 0 for pixels of no object, and 1 more than the class for
    others."""
    category_ids: bool = False
    """Whether classes are the ids of categories, as torchvision's detectors count them, instead of their positions."""


check = preprocessing.check


def target_kind(options: Options) -> str:
    """Boxes or masks."""
    return "boxes" if options.targets == "boxes" else "mask"


def fingerprint(options: Options) -> str:
    """SHA-256 over the JSON files, and over every image that they name.

    Raises:
        LowerdeckError: a file is missing, or an annotation is wrong; the message lists all faults.
    """
    files: dict[str, Path] = {}
    for split, path in _paths(options).items():
        files[split] = path
        images = _read(options, path).files
        preprocessing.check_images(path, images)
        files |= {f"{split}/{row}": image for row, image in enumerate(images)}
    return data.files_digest(files)


def load(options: Options, input_shapes: Sequence[Sequence[int]], seed: int) -> splits.LoadedDataset:
    """The images, placed in the model's input, with their boxes or masks in its pixels.

    Boxes of which nothing is left after a crop are left out.

    Args:
        options: see Options
        input_shapes: the model's, [[1, 1 or 3, h, w]]
        seed: fixes the order of the samples

    Raises:
        ConfigurationError: options that do not fit the model.
        LowerdeckError: a file is missing, or an annotation is wrong; the message lists all faults.
    """
    prepare, shape = splits.image_preparation(options, input_shapes), preprocessing.image_shape(input_shapes)
    listed = {split: _read(options, path) for split, path in _paths(options).items()}
    names = {split: one.class_names for split, one in listed.items()}
    if names["calibration"] != names["evaluation"]:
        raise LowerdeckError(
            f"{options.calibration} and {options.evaluation} have different categories; only in one of them: "
            f"{', '.join(sorted(set(names['calibration']) ^ set(names['evaluation']))) or 'none, their order differs'}"
        )

    def split(found: Annotations) -> image_folder.ImageFileSplit:
        def target(row: int) -> Any:
            preprocessing.check_size(found.files[row], found.sizes[row], f"the entry of {found.files[row]}")
            if options.targets == "boxes":
                return _boxes(options, found, row, shape[1:])
            return _mask(options, found, row, shape[1:])

        return image_folder.ImageFileSplit(found.files, [None] * len(found.files), prepare, seed, target)

    loaded = {name: split(found) for name, found in listed.items()}
    known = names["evaluation"] if options.targets == "boxes" else ("background", *names["evaluation"])
    if options.targets == "masks" and len(known) > _NO_CLASS:
        raise LowerdeckError(
            f"{options.evaluation} has {len(known) - 1} classes; masks can have {_NO_CLASS - 1}, because {_NO_CLASS} "
            "is a pixel that does not count. Remove categories, or set category_ids: false or targets: boxes "
            "(dataset.options)"
        )
    return splits.LoadedDataset(
        num_classes=len(known),
        calibration=loaded["calibration"],
        evaluation=loaded["evaluation"],
        training=loaded.get("training"),
        class_names=known,
        preprocessing=preprocessing.description(options, shape),
    )


def _paths(options: Options) -> dict[str, Path]:
    named = {name: getattr(options, name) for name in ("calibration", "evaluation", "training")}
    return {name: Path(path) for name, path in named.items() if path is not None}


def _read(options: Options, path: Path) -> Annotations:
    folder = path.parent if options.images is None else Path(options.images)
    return coco_json.read(path, folder, category_ids=options.category_ids, outlines=options.targets == "masks")


def _placement(options: Options, image_size: tuple[int, int], size: tuple[int, int]) -> placement.Placement:
    return placement.placement(image_size, size, options.resize, options.fit)


def _boxes(options: Options, found: Annotations, row: int, size: tuple[int, int]) -> Boxes:
    """The objects of an image in pixels of the input."""
    objects, where = found.objects[row], _placement(options, found.sizes[row], size)
    given = np.array([one.box for one in objects], dtype=np.float64).reshape(-1, 4)
    moved = where.boxes(given)
    seen = (moved[:, 2:] > moved[:, :2]).all(axis=1)
    return Boxes(
        boxes=moved[seen],
        classes=np.array([one.label for one in objects], dtype=np.int64)[seen],
        crowd=np.array([one.is_crowd for one in objects], dtype=bool)[seen],
    )


def _mask(options: Options, found: Annotations, row: int, size: tuple[int, int]) -> npt.NDArray[np.int64]:
    """The class of every pixel of the input; smaller objects lie over larger ones."""
    from PIL import Image

    width, height = found.sizes[row]
    classes = np.zeros((height, width), dtype=np.int32)
    for one in sorted(found.objects[row], key=lambda one: -one.area):
        classes[coco_json.pixels(one, width, height)] = _NO_CLASS if one.is_crowd else one.label + 1
    return preprocessing.mask_pixels(Image.fromarray(classes), size, options.resize, options.fit)
