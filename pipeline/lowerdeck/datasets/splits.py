"""Parts of datasets for sources: the dataset itself, splits of arrays in memory, and the preparation of images."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from lowerdeck.contracts.samples import Sample, Split
from lowerdeck.datasets import preprocessing
from lowerdeck.fingerprints import data

if TYPE_CHECKING:
    from PIL import Image

Arrays = tuple[npt.NDArray[np.generic], ...]
ImagePreparation: TypeAlias = "Callable[[Image.Image], npt.NDArray[np.float32]]"


@dataclass(kw_only=True)
class LoadedDataset:
    """Samples for calibration and evaluation: contracts.samples.Dataset."""

    num_classes: int | None
    calibration: Split
    evaluation: Split
    training: Split | None = None
    structural: bool = False
    class_names: tuple[str, ...] = ()
    preprocessing: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class ArraySplit:
    """Samples in memory as arrays, preprocessed one at a time on access."""

    stored: Arrays
    """The model's inputs as stored, each [n x ...]."""
    labels: npt.NDArray[np.int64] | None
    """int64 [n], or None."""
    prepare: Callable[[Arrays], Arrays]
    """One sample's stored arrays, each [1 x ...], to the model's inputs, each [1 x ...]."""
    order: Sequence[int]
    """Index of a sample -> row."""
    name: str
    """Name of the samples in messages, e.g. the file's path."""
    targets: npt.NDArray[np.generic] | None = None
    """[n x ...], what outputs are compared with in place of labels; None where labels say all."""
    groups: npt.NDArray[np.int64] | None = None
    """int64 [n], the recording that each sample belongs to; None where samples stand alone."""

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, index: int) -> Sample:
        row = row_of(self.order, index)
        inputs = self.prepare(tuple(array[row : row + 1] for array in self.stored))
        label = None if self.labels is None else int(self.labels[row])
        return sample(inputs, label, self.digest(index), self._target(row))

    def target(self, index: int) -> Any:
        """`self[index].expected` without the inputs."""
        row = row_of(self.order, index)
        found = self._target(row)
        return int(self.labels[row]) if found is None and self.labels is not None else found

    def _target(self, row: int) -> Any:
        if self.groups is not None:
            return {"label": None if self.labels is None else int(self.labels[row]), "group": int(self.groups[row])}
        return None if self.targets is None else np.array(self.targets[row])

    def digest(self, index: int) -> str:
        """SHA-256 of the sample's bytes as stored."""
        row = row_of(self.order, index)
        return data.array_digest(np.ascontiguousarray(array[row]).tobytes() for array in self.stored)

    def origin(self, index: int) -> str:
        """Where the sample came from, for messages."""
        return f"row {row_of(self.order, index)} of {self.name}"


def image_preparation(options: preprocessing.ImageOptions, input_shapes: Sequence[Sequence[int]]) -> ImagePreparation:
    """A function from an image to the model's input, float32 [1 x c x h x w].

    Raises:
        ConfigurationError: the options do not fit the model.
    """
    shape = preprocessing.image_shape(input_shapes)
    preprocessing.check_channels(options.mean, shape[0])
    preprocessing.check_crop(options.resize, shape)

    def prepare(image: Image.Image) -> npt.NDArray[np.float32]:
        how = options.resize, options.interpolation, options.fit, options.fill
        pixels = preprocessing.image_pixels(image, shape, *how)
        return preprocessing.normalised(pixels[np.newaxis], preprocessing.PIXEL_SCALE, options.mean, options.std)

    return prepare


def sample(
    inputs: Arrays, label: int | None, digest: str, target: Any = None, following: Sequence[Arrays] = ()
) -> Sample:
    """A Sample whose tensors own their memory.

    Args:
        inputs: one array for each of the model's inputs, with batch dimension
        label: class index or None
        digest: SHA-256 of the stored sample
        target: what outputs are compared with where it is no class index
        following: the inputs of further calls of a stream
    """
    import torch  # not at the top of the module: fingerprints must not import it

    first, *others = (tuple(torch.from_numpy(np.array(array)) for array in call) for call in (inputs, *following))
    return Sample(inputs=first, label=label, digest=digest, target=target, following=tuple(others))


def row_of(order: Sequence[int], index: int) -> int:
    """`order[index]`, without Python's negative indices.

    Raises:
        IndexError: the index is out of range; this also ends a `for` loop over a split.
    """
    if not 0 <= index < len(order):
        raise IndexError(f"sample {index} of a split of {len(order)}")
    return order[index]


def seeded_order(num_samples: int, seed: int) -> tuple[int, ...]:
    """0 ... num_samples-1, shuffled.

    Datasets are often stored class by class, and calibration uses the first n samples, which are representative only
    after shuffling. Sorting by a hash results in the same order with every version of every library.
    """
    return tuple(sorted(range(num_samples), key=lambda row: hashlib.sha256(f"{seed}:{row}".encode()).digest()))
