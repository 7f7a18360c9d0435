"""Samples from `.npz` or `.safetensors` files, for data other than image folders.

Each file contains `inputs` [n x ...], or `input_0`, `input_1`, ... for a model with several inputs, and optionally
what the outputs are compared with: integer `labels` [n], or `targets` [n x ...] of any shape (values, masks, 0/1
labels). Integer `groups` [n] name the recording that each sample belongs to, for the task anomaly; those of a recording
have one label.
Neither format can contain code; numpy's pickles are refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lowerdeck.contracts.errors import ConfigurationError, LowerdeckError
from lowerdeck.datasets import array_checks, class_names, preprocessing, splits
from lowerdeck.fingerprints import data
from lowerdeck.formats.numpy_files import read_npz
from lowerdeck.formats.regular_files import check_regular

SUFFIXES = (".npz", ".safetensors")
MAX_CLASSES = 100_000
_STORED_AS = {"bfloat16": "float32"}
"""NumPy's dtypes for those of models that it lacks."""


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
    """Number of classes; null to count them in all files: the highest label and one."""
    class_names: str | None = None
    """Path of a text file with the name of each class in a line; null for numbers."""
    scale: float = 1.0
    """Factor applied to the stored values before mean and std; 0.00392156862745098 (1/255) for pixels stored as
    uint8."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.scale == 0:
            raise ValueError("scale is 0.0, which makes all samples the same; 1.0 leaves the values as they are")
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
    class_names.read(options.class_names)
    files |= class_names.files(options.class_names)
    return data.files_digest(files)


def target_kind(options: Options) -> str | None:
    """What the evaluation file has: class indices, targets, or neither.

    Raises:
        LowerdeckError: the file is missing or damaged.
    """
    names = _read(Path(options.evaluation))
    return "array" if "targets" in names else "class" if "labels" in names else None


def load(
    options: Options, input_shapes: Sequence[Sequence[int]], seed: int, input_dtypes: Sequence[str] = ()
) -> splits.LoadedDataset:
    """The samples of all files; values get the dtypes of the model's inputs, which have to be able to hold them.

    Args:
        options: see Options
        input_shapes: the model's, each with its batch dimension; the files' must match
        seed: fixes the order of the samples
        input_dtypes: that of every input; values keep their own where there are none

    Raises:
        ConfigurationError: options that do not fit the model or the files.
        LowerdeckError: a file is missing, damaged, empty or has other shapes or values; the message lists all faults.
    """
    shapes = preprocessing.shapes_without_batch(input_shapes)
    if options.normalises and len(shapes) != 1:
        raise ConfigurationError(
            f"dataset.options has scale, mean or std, but the model has {len(shapes)} inputs; leave them out and store "
            "the inputs as the model takes them"
        )
    if options.normalises and len(options.mean) > 1:
        preprocessing.check_channels(options.mean, shapes[0][0] if shapes[0] else 1)
    paths = [options.calibration, options.evaluation, *([] if options.training is None else [options.training])]
    arrays = {path: _read(Path(path)) for path in paths}
    names = class_names.read(options.class_names)
    if names and options.num_classes not in (None, len(names)):
        raise ConfigurationError(
            f"dataset.options.num_classes is {options.num_classes}, and {options.class_names} names {len(names)} "
            "classes; name every class, or set num_classes: null"
        )
    num_classes = options.num_classes or len(names) or _counted_classes(arrays.values())
    problems = [
        f"{path}: {problem}"
        for path, found in arrays.items()
        for problem in array_checks.problems(found, shapes, () if options.normalises else input_dtypes, num_classes)
    ]
    if problems:
        raise LowerdeckError("the files of dataset arrays do not fit the model:\n  " + "\n  ".join(problems))
    loaded = [_split(options, path, arrays[path], len(shapes), input_dtypes, seed) for path in paths]
    return splits.LoadedDataset(
        num_classes=num_classes,
        calibration=loaded[0],
        evaluation=loaded[1],
        training=loaded[2] if options.training is not None else None,
        class_names=names,
        preprocessing={"kind": "values", "scale": options.scale, "mean": list(options.mean), "std": list(options.std)}
        if options.normalises
        else None,
    )


def _as_dtype(values: npt.NDArray[np.generic], dtype: str) -> npt.NDArray[np.generic]:
    return values.astype(_STORED_AS.get(dtype, dtype), copy=False)


def _counted_classes(files: Iterable[Mapping[str, npt.NDArray[np.generic]]]) -> int | None:
    """Of all files: a model of embeddings is evaluated on other classes than it learned, and often on fewer."""
    found = [arrays["labels"] for arrays in files if "labels" in arrays]
    highest = [int(labels.max()) for labels in found if labels.size and labels.dtype.kind in "iu"]
    return min(max(highest), MAX_CLASSES - 1) + 1 if highest else None


def _split(
    options: Options,
    path: str,
    arrays: Mapping[str, npt.NDArray[np.generic]],
    num_inputs: int,
    dtypes: Sequence[str],
    seed: int,
) -> splits.ArraySplit:
    """The samples of a file without problems."""
    stored = tuple(arrays[name] for name in array_checks.input_names(arrays, num_inputs))

    def prepare(inputs: splits.Arrays) -> splits.Arrays:
        if not options.normalises:
            return tuple(map(_as_dtype, inputs, dtypes)) if dtypes else inputs
        return (preprocessing.normalised(inputs[0], options.scale, options.mean, options.std),)

    labels, groups = arrays.get("labels"), arrays.get("groups")
    return splits.ArraySplit(
        stored=stored,
        labels=None if labels is None else labels.astype(np.int64),
        targets=arrays.get("targets"),
        groups=None if groups is None else groups.astype(np.int64),
        prepare=prepare,
        order=splits.seeded_order(len(stored[0]), seed),
        name=path,
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
    except (AttributeError, TypeError) as error:  # what NumPy says of names of dtypes that it lacks
        raise LowerdeckError(
            f"{path} has a dtype that NumPy lacks ({error}); allowed are {', '.join(array_checks.DTYPES)}. Store it in "
            "the model's dtype, e.g. `inputs.float()`"
        ) from error
    except (ValueError, OSError, EOFError, KeyError, SafetensorError) as error:
        raise LowerdeckError(f"{path} cannot be read as .safetensors: {error}") from error
