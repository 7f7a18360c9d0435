"""The handwritten digits that data/prepare_digits.py makes from scikit-learn's: real data without a download.

1,797 grey images of 32x32 pixels in ten classes, split so that calibration, evaluation and training share none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lowerdeck.contracts.errors import ConfigurationError, LowerdeckError
from lowerdeck.datasets import preprocessing, splits
from lowerdeck.fingerprints import data
from lowerdeck.fingerprints.digests import digest
from lowerdeck.formats.regular_files import check_regular

REMEDY = "run `dvc repro data/dvc.yaml`"


@dataclass(frozen=True, kw_only=True)
class Options(preprocessing.NormalisedOptions):
    """Keys of `dataset.options`."""

    root: str = "data/prepared/digits"
    """Folder that the stage `prepare` of data/dvc.yaml writes."""


def fingerprint(options: Options) -> str:
    """SHA-256 over all splits' files and the class names.

    Raises:
        LowerdeckError: a file is missing, or does not match the manifest.
    """
    manifest = _manifest(options)
    digests = [_checked_digest(options, manifest, split) for split in ("calibration", "evaluation", "train")]
    return digest([*digests, manifest["class_names"]])


def target_kind(options: Options) -> str:
    """The digit."""
    return "class"


def check(options: Options, input_shapes: Sequence[Sequence[int]]) -> None:
    """Raise ConfigurationError unless the model takes one image of 32x32 pixels."""
    shape = preprocessing.image_shape(input_shapes)
    if shape[1:] != (32, 32):
        raise ConfigurationError(
            f"model.input_shapes is {[list(shape) for shape in input_shapes]}; the digits are 32x32 pixels: allowed "
            "are [[1, 1, 32, 32]] and [[1, 3, 32, 32]]. Choose another model or dataset."
        )
    preprocessing.check_channels(options.mean, shape[0])


def load(options: Options, input_shapes: Sequence[Sequence[int]], seed: int) -> splits.LoadedDataset:
    """The digits for a model that takes [1 x 1 x 32 x 32] or [1 x 3 x 32 x 32]; the grey channel is repeated.

    Args:
        options: see Options
        input_shapes: the model's, each with its batch dimension
        seed: fixes the order of the samples

    Raises:
        ConfigurationError: the model takes another shape.
        LowerdeckError: a file is missing, or does not match the manifest.
    """
    check(options, input_shapes)
    shape = preprocessing.image_shape(input_shapes)
    manifest = _manifest(options)
    calibration, evaluation, training = (
        _load_split(options, manifest, split, shape[0], seed) for split in ("calibration", "evaluation", "train")
    )
    return splits.LoadedDataset(
        num_classes=len(manifest["class_names"]),
        calibration=calibration,
        evaluation=evaluation,
        training=training,
        class_names=tuple(map(str, manifest["class_names"])),
        preprocessing=preprocessing.description(options, shape),
    )


def _load_split(
    options: Options, manifest: Mapping[str, Any], split: str, channels: int, seed: int
) -> splits.ArraySplit:
    from safetensors.numpy import load_file

    _checked_digest(options, manifest, split)
    path = _file(options, split)
    tensors = load_file(path)
    images, labels = tensors["images"], tensors["labels"]

    def prepare(stored: splits.Arrays) -> splits.Arrays:
        pixels = preprocessing.with_channels(stored[0].astype(np.uint8), channels)
        return (preprocessing.normalised(pixels, preprocessing.PIXEL_SCALE, options.mean, options.std),)

    order = splits.seeded_order(len(images), seed)
    return splits.ArraySplit(stored=(images,), labels=labels, prepare=prepare, order=order, name=str(path))


def _manifest(options: Options) -> dict[str, Any]:
    path = Path(options.root) / "manifest.json"
    try:
        manifest: dict[str, Any] = json.loads(check_regular(path).read_text(encoding="utf-8"))
        for split in ("calibration", "evaluation", "train"):
            str(manifest["splits"][split]["sha256"])
        len(manifest["class_names"])
    except (FileNotFoundError, NotADirectoryError) as error:
        raise LowerdeckError(f"the digits are not prepared, {path} is missing: {REMEDY}") from error
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise LowerdeckError(f"{path} is not the manifest that preparing writes ({reason}): {REMEDY}") from error
    return manifest


def _checked_digest(options: Options, manifest: Mapping[str, Any], split: str) -> str:
    path = _file(options, split)
    if not path.is_file():
        raise LowerdeckError(f"the digits are not complete, {path} is missing: {REMEDY}")
    digest, expected = data.file_digest(path), manifest["splits"][split]["sha256"]
    if digest != expected:
        raise LowerdeckError(
            f"{path} has SHA-256 {digest[:12]}..., but {expected[:12]}... in its manifest: it was changed after it was "
            f"prepared, {REMEDY}"
        )
    return digest


def _file(options: Options, split: str) -> Path:
    return Path(options.root) / f"{split}.safetensors"
