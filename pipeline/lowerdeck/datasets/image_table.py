"""Images listed in CSV or parquet files, one for each split, with what the outputs are compared with in columns.

    image,label            image,mask                 image,x,y
    cats/001.jpg,cat       street/1.jpg,masks/1.png   faces/1.jpg,0.25,0.5

Paths are relative to the folder of the list. A mask is an image of one channel whose values are class indices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lowerdeck.datasets import class_names, image_folder, preprocessing, splits, tables
from lowerdeck.datasets.faults import raise_faults
from lowerdeck.fingerprints import data


@dataclass(frozen=True, kw_only=True)
class Options(preprocessing.ImageOptions):
    """Keys of `dataset.options`."""

    calibration: str
    """Path of the CSV or parquet file with calibration images."""
    evaluation: str
    """Path of the CSV or parquet file with evaluation images."""
    training: str | None = None
    """Path of a file with images for quantization-aware training; null to learn from the calibration images."""
    image: str = "image"
    """Column with the path of the image."""
    label: str | None = None
    """Column with the class: a name, or an index if `classes` is empty."""
    classes: list[str] = field(default_factory=list)
    """Names of the classes, in the order of the model's outputs; empty where the column has indices."""
    mask: str | None = None
    """Column with the path of the mask."""
    values: list[str] = field(default_factory=list)
    """Columns with numbers, e.g. [x, y]: the target is an array of them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        chosen = [name for name in ("label", "mask", "values") if getattr(self, name)]
        if len(chosen) > 1:
            raise ValueError(f"{' and '.join(chosen)} are set; name one of label, mask and values, or none")
        if self.classes and not self.label:
            raise ValueError("classes is set without label; name the column with the classes")
        if twice := class_names.repeated(self.classes):
            raise ValueError(f"classes has {', '.join(twice)} twice; every class must have another name")


@dataclass(frozen=True, kw_only=True)
class _Table:
    """The rows of a list."""

    images: tuple[Path, ...]
    labels: tuple[int | None, ...]
    masks: tuple[Path, ...]
    values: npt.NDArray[np.float32] | None
    """[n x columns]."""


def check(options: Options, input_shapes: Sequence[Sequence[int]]) -> None:
    """Raise ConfigurationError unless images prepared with `options` fit a model with these inputs."""
    preprocessing.check(options, input_shapes)


def target_kind(options: Options) -> str | None:
    """By the column that is named."""
    return "class" if options.label else "mask" if options.mask else "array" if options.values else None


def fingerprint(options: Options) -> str:
    """SHA-256 over the lists, and over every image and mask that they name.

    Raises:
        LowerdeckError: a file is missing, or a row is wrong; the message lists all faults.
    """
    files: dict[str, Path] = {}
    for split, path in _paths(options).items():
        table = _table(options, path)
        preprocessing.check_images(path, (*table.images, *table.masks))
        files[split] = path
        for kind, members in (("image", table.images), ("mask", table.masks)):
            files |= {f"{split}/{kind}/{row}": member for row, member in enumerate(members)}
    return data.files_digest(files)


def load(options: Options, input_shapes: Sequence[Sequence[int]], seed: int) -> splits.LoadedDataset:
    """The images, resized and cropped to the model's input, and their masks alike.

    Args:
        options: see Options
        input_shapes: the model's, [[1, 1 or 3, h, w]]
        seed: fixes the order of the samples

    Raises:
        ConfigurationError: options that do not fit the model.
        LowerdeckError: a file is missing, or a row is wrong; the message lists all faults.
    """
    prepare, size = splits.image_preparation(options, input_shapes), preprocessing.image_shape(input_shapes)[1:]

    def split(path: Path) -> image_folder.ImageFileSplit:
        table = _table(options, path)

        def target(row: int) -> Any:
            if table.values is not None:
                return table.values[row]
            mask = preprocessing.decoded_mask(table.masks[row], table.images[row])
            return preprocessing.mask_pixels(mask, size, options.resize, options.fit)

        has_target = table.values is not None or bool(table.masks)
        labels = table.labels
        return image_folder.ImageFileSplit(table.images, labels, prepare, seed, target if has_target else None)

    loaded = {name: split(path) for name, path in _paths(options).items()}
    labels = _table(options, Path(options.evaluation)).labels if options.label and not options.classes else ()
    counted = max((label for label in labels if label is not None), default=-1) + 1
    return splits.LoadedDataset(
        num_classes=len(options.classes) or counted or None,
        calibration=loaded["calibration"],
        evaluation=loaded["evaluation"],
        training=loaded.get("training"),
        class_names=tuple(options.classes),
        preprocessing=preprocessing.description(options, preprocessing.image_shape(input_shapes)),
    )


def _paths(options: Options) -> dict[str, Path]:
    named = {name: getattr(options, name) for name in ("calibration", "evaluation", "training")}
    return {name: Path(path) for name, path in named.items() if path is not None}


def _table(options: Options, path: Path) -> _Table:
    columns = [options.image, *filter(None, (options.label, options.mask)), *options.values]
    rows, faults = tables.rows(path, columns), list[str]()

    def files(column: str) -> tuple[Path, ...]:
        found = tuple(path.parent / row[column] for row in rows)
        faults.extend(
            f"{tables.place(row, number)}: {column} is {row[column]!r}, and there is no such file"
            for number, (row, file) in enumerate(zip(rows, found, strict=True))
            if not file.is_file()
        )
        return found

    table = _Table(
        images=files(options.image),
        labels=tables.labels(rows, options.label, options.classes, faults) if options.label else (None,) * len(rows),
        masks=files(options.mask) if options.mask else (),
        values=tables.numbers(rows, options.values, faults).astype(np.float32) if options.values else None,
    )
    raise_faults(path, faults)
    return table
