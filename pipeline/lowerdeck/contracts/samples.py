"""The interfaces of datasets and models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One example, preprocessed for the model."""

    inputs: tuple[torch.Tensor, ...]
    """The model's inputs in order, each with its batch dimension, e.g. (float32 [1 x c x h x w],)."""
    label: int | None
    """Class index, or None where the dataset has no labels."""
    digest: str
    """Hexadecimal SHA-256 of the stored sample before preprocessing: equal digests mean the same sample."""


class Split(Protocol):
    """An ordered, finite part of a dataset; iterating it twice gives the same samples."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Sample:
        """Return sample number `index`, 0 <= index < len(self); raise IndexError otherwise."""
        ...

    def digest(self, index: int) -> str:
        """Return `self[index].digest` without decoding or preprocessing the sample."""
        ...


class Dataset(Protocol):
    """Samples for calibration and evaluation."""

    num_classes: int | None
    """Number of classes, or None where the samples have no labels."""
    structural: bool
    """Whether the data is random: it shows that a program runs, but its accuracy metrics mean nothing."""
    calibration: Split
    evaluation: Split
    training: Split | None
    """Samples for quantization-aware training; None to use the calibration samples."""


class DatasetSource(Protocol):
    """A module `pipeline/lowerdeck/datasets/NAME.py`, chosen by `dataset.source: NAME`."""

    Options: type
    """Frozen keyword-only dataclass that validates `dataset.options`."""

    def fingerprint(self, options: Any) -> str:
        """Return the SHA-256 over all content that `load` would read; must not import torch."""
        ...

    def load(self, options: Any, input_shapes: Sequence[Sequence[int]], seed: int) -> Dataset:
        """Return the dataset with samples of these input shapes, each including its batch dimension."""
        ...


class ModelSource(Protocol):
    """A module `pipeline/lowerdeck/models/NAME.py`, chosen by `model.source: NAME`."""

    Options: type
    """Frozen keyword-only dataclass that validates `model.options`."""

    def check(self, options: Any, weights: str | None, plugins: Sequence[str]) -> None:
        """Raise ConfigurationError for a value that `build` would refuse, without building the model."""
        ...

    def build(self, options: Any, weights: str | None) -> torch.nn.Module:
        """Return the model in eval mode with its weights loaded."""
        ...
