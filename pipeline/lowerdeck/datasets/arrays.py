"""Samples from `.npz` or `.safetensors` files, for data other than image folders.

Each file contains `inputs` [n x ...], or `input_0`, `input_1`, ... for a model with several inputs, and optionally
integer `labels` [n]. Neither format can contain code; numpy's pickles are refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lowerdeck.contracts.errors import ConfigurationError, LowerdeckError
from lowerdeck.datasets import preprocessing, splits
from lowerdeck.fingerprints import data
from lowerdeck.formats.numpy_files import read_npz
from lowerdeck.formats.regular_files import check_regular

SUFFIXES = (".npz", ".safetensors")
MAX_CLASSES = 100_000
DTYPES = ("float32", "float16", "int64", "int32", "int16", "int8", "uint8", "bool")


@dataclass(frozen=True, kw_only=True)
class Options(preprocessing.NormalisedOptions):
    """Keys of `dataset.options`."""

    calibration: str
    """Path of the file with calibration samples, .npz or .safetensors."""
    evaluation: str
    """Path of the file with evaluation samples, .npz or .safetensors."""
    training: str | None = None
    """Path of a file with samples for quantization-aware training; null to learn from the calibration samples."""
    num_classes: int | None = None
    """Number of classes; required if the files contain labels."""
    scale: float = 1.0
    """Factor applied to the stored values before mean and std; 0.00392156862745098 (1/255) for pixels stored as
    uint8."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_classes is not None and not 1 <= self.num_classes <= MAX_CLASSES:
            raise ValueError(
                f"num_classes is {self.num_classes}; it must be from 1 to {MAX_CLASSES:,}, or null without labels"
            )

    @property
    def normalises(self) -> bool:
        """Whether values change (and become float32) or stay as stored."""
        return self.scale != 1.0 or set(self.mean) != {0.0} or set(self.std) != {1.0}


def fingerprint(options: Options) -> str:
    """SHA-256 over all files.

    Raises:
        LowerdeckError: a file cannot be read.
    """
    files = {"calibration": Path(options.calibration), "evaluation": Path(options.evaluation)}
    if options.training is not None:
        files["training"] = Path(options.training)
    return data.files_digest(files)


def load(options: Options, input_shapes: Sequence[Sequence[int]], seed: int) -> splits.LoadedDataset:
    """The samples of all files; values keep their dtype unless scale, mean or std change them.

    Args:
        options: see Options
        input_shapes: the model's, each with its batch dimension; the files' must match
        seed: fixes the order of the samples

    Raises:
        ConfigurationError: options that do not fit the model or the files.
        LowerdeckError: a file is missing, damaged, empty or has other shapes.
    """
    shapes = preprocessing.shapes_without_batch(input_shapes)
    if options.normalises and len(shapes) != 1:
        raise ConfigurationError(
            f"dataset.options has scale, mean or std, but the model has {len(shapes)} inputs; leave them out and store "
            "the inputs as the model takes them"
        )
    if options.normalises and len(options.mean) > 1:
        preprocessing.check_channels(options.mean, shapes[0][0] if shapes[0] else 1)
    return splits.LoadedDataset(
        num_classes=options.num_classes,
        calibration=_load_split(options, Path(options.calibration), shapes, seed),
        evaluation=_load_split(options, Path(options.evaluation), shapes, seed),
        training=_load_split(options, Path(options.training), shapes, seed) if options.training is not None else None,
    )


def _load_split(options: Options, path: Path, shapes: tuple[tuple[int, ...], ...], seed: int) -> splits.ArraySplit:
    arrays = _read(path)
    names = ("inputs",) if len(shapes) == 1 and "inputs" in arrays else tuple(f"input_{i}" for i in range(len(shapes)))
    unknown = sorted(set(arrays) - set(names) - {"labels"})
    missing = sorted(set(names) - set(arrays))
    if missing or unknown:
        wanted = "`inputs`" if len(shapes) == 1 else ", ".join(f"`{name}`" for name in names)
        raise LowerdeckError(
            f"{path} contains {', '.join(sorted(arrays)) or 'nothing'}; for this model it must contain {wanted}, may "
            "contain `labels`, and nothing else"
        )
    stored = tuple(arrays[name] for name in names)
    _check_inputs(path, dict(zip(names, stored, strict=True)), shapes)
    labels = arrays.get("labels")
    if labels is not None:
        if options.num_classes is None:
            raise ConfigurationError(
                f"{path} contains labels: set dataset.options.num_classes to the number of classes"
            )
        splits.check_labels(labels, len(stored[0]), options.num_classes, str(path))
        labels = labels.astype(np.int64)

    def prepare(inputs: splits.Arrays) -> splits.Arrays:
        if not options.normalises:
            return inputs
        return (preprocessing.normalised(inputs[0], options.scale, options.mean, options.std),)

    order = splits.seeded_order(len(stored[0]), seed)
    return splits.ArraySplit(stored=stored, labels=labels, prepare=prepare, order=order, name=str(path))


def _check_inputs(
    path: Path, inputs: Mapping[str, npt.NDArray[np.generic]], shapes: tuple[tuple[int, ...], ...]
) -> None:
    num_samples = {len(array) if array.ndim else 0 for array in inputs.values()}
    if len(num_samples) != 1 or 0 in num_samples:
        counts = ", ".join(f"{name} {list(array.shape)}" for name, array in inputs.items())
        raise LowerdeckError(
            f"{path} contains {counts}; every input must have the same number of samples, at least one"
        )
    for (name, array), shape in zip(inputs.items(), shapes, strict=True):
        if array.shape[1:] != shape:
            raise LowerdeckError(
                f"{name} in {path} has samples of shape {list(array.shape[1:])}, the model takes {list(shape)}: store "
                f"[n, {', '.join(map(str, shape))}], or correct model.input_shapes"
            )
        if array.dtype.name not in DTYPES:
            raise LowerdeckError(
                f"{name} in {path} is {array.dtype.name}; allowed are {', '.join(DTYPES)}. Store it in the model's "
                "dtype, e.g. `inputs.astype('float32')`."
            )


def _read(path: Path) -> dict[str, npt.NDArray[np.generic]]:
    if path.suffix not in SUFFIXES:
        raise ConfigurationError(f"dataset file {path} has suffix {path.suffix!r}; allowed are {', '.join(SUFFIXES)}")
    if not check_regular(path).is_file():
        raise LowerdeckError(f"dataset file {path} does not exist; correct dataset.options, or put the file there")
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    if path.suffix == ".npz":
        return read_npz(path)
    try:
        return dict(load_file(path))
    except (ValueError, OSError, EOFError, KeyError, TypeError, SafetensorError) as error:
        raise LowerdeckError(f"{path} cannot be read as .safetensors: {error}") from error
