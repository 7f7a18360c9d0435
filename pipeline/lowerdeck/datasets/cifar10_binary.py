"""CIFAR-10 in its binary version, which needs no unpickling: training batches calibrate, the test batch evaluates.

    root/cifar-10-batches-bin/data_batch_1.bin ... data_batch_5.bin, test_batch.bin, batches.meta.txt

A record is a byte with the class and 3072 bytes of pixels, the red, green and blue plane of 32x32. Source: A.
Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009; https://www.cs.toronto.edu/~kriz/cifar.html.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lowerdeck.contracts.errors import ConfigurationError, LowerdeckError
from lowerdeck.datasets import preprocessing, splits
from lowerdeck.fingerprints import data
from lowerdeck.formats.regular_files import check_regular

FOLDER, NAMES = "cifar-10-batches-bin", "batches.meta.txt"
BATCHES = {
    "calibration": tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
    "evaluation": ("test_batch.bin",),
}
_SHAPE, _RECORD_BYTES = (3, 32, 32), 3073


@dataclass(frozen=True, kw_only=True)
class Options(preprocessing.NormalisedOptions):
    """Keys of `dataset.options`."""

    root: str
    """Folder that contains cifar-10-batches-bin/, as the archive cifar-10-binary.tar.gz unpacks."""


def target_kind(options: Options) -> str:
    """What the picture shows."""
    return "class"


def check(options: Options, input_shapes: Sequence[Sequence[int]]) -> None:
    """Raise ConfigurationError unless the model takes one picture of 32x32 pixels in colour."""
    if preprocessing.image_shape(input_shapes) != _SHAPE:
        raise ConfigurationError(
            f"model.input_shapes is {[list(shape) for shape in input_shapes]}; CIFAR-10 has colour pictures of 32x32 "
            "pixels: allowed is [[1, 3, 32, 32]]. Choose another model or dataset."
        )
    preprocessing.check_channels(options.mean, 3)


def fingerprint(options: Options) -> str:
    """SHA-256 over all batches and the names of the classes.

    Raises:
        LowerdeckError: a file is missing.
    """
    folder = _folder(options)
    return data.files_digest({name: folder / name for name in (*BATCHES["calibration"], *BATCHES["evaluation"], NAMES)})


def load(options: Options, input_shapes: Sequence[Sequence[int]], seed: int) -> splits.LoadedDataset:
    """The pictures; they stay in the files until they are used.

    Args:
        options: see Options
        input_shapes: the model's, [[1, 3, 32, 32]]
        seed: fixes the order of the samples

    Raises:
        ConfigurationError: the model takes another shape.
        LowerdeckError: a file is missing or damaged.
    """
    check(options, input_shapes)
    folder = _folder(options)
    class_names = tuple(check_regular(folder / NAMES).read_text(encoding="utf-8").split())

    def prepare(stored: splits.Arrays) -> splits.Arrays:
        return (preprocessing.normalised(stored[0], preprocessing.PIXEL_SCALE, options.mean, options.std),)

    def split(name: str) -> splits.ArraySplit:
        records = np.concatenate([_records(folder / batch, len(class_names)) for batch in BATCHES[name]])
        return splits.ArraySplit(
            stored=(records[:, 1:].reshape(-1, *_SHAPE),),
            labels=records[:, 0].astype(np.int64),
            prepare=prepare,
            order=splits.seeded_order(len(records), seed),
            name=f"{folder} ({name})",
        )

    return splits.LoadedDataset(
        num_classes=len(class_names),
        calibration=split("calibration"),
        evaluation=split("evaluation"),
        class_names=class_names,
        preprocessing=preprocessing.description(options, _SHAPE),
    )


def _folder(options: Options) -> Path:
    folder = Path(options.root) / FOLDER
    wanted = (*BATCHES["calibration"], *BATCHES["evaluation"], NAMES)
    if missing := [name for name in wanted if not (folder / name).is_file()]:
        raise LowerdeckError(
            f"{folder} lacks {', '.join(missing)}; download cifar-10-binary.tar.gz (not the Python version, which is "
            "pickled) and unpack it into dataset.options.root"
        )
    return folder


def _records(path: Path, num_classes: int) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    content = np.fromfile(path, dtype=np.uint8)
    if not len(content) or len(content) % _RECORD_BYTES:
        raise LowerdeckError(
            f"{path} has {len(content):,} bytes, and records have {_RECORD_BYTES}: it is damaged; unpack it again"
        )
    records = content.reshape(-1, _RECORD_BYTES)
    if (highest := int(records[:, 0].max())) >= num_classes:
        raise LowerdeckError(f"{path} has the class {highest} of {num_classes} in {NAMES}; unpack the archive again")
    return records
