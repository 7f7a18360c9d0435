"""Samples and models: what a dataset and a model source offer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One example as the model takes it."""

    inputs: tuple[torch.Tensor, ...]
    """The model's inputs in order, each with its batch dimension, e.g. (float32 [1 x c x h x w],)."""
    label: int | None
    """Class index, or None where the dataset has no labels."""
    digest: str
    """SHA-256 of the stored sample (before preprocessing), hexadecimal: equal digests mean the same sample."""


class Split(Protocol):
    """An ordered, finite part of a dataset; iterating it twice gives the same samples."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Sample:
        """Sample number `index`, 0 <= index < len(self); raises IndexError otherwise."""
        ...

    def digest(self, index: int) -> str:
        """`self[index].digest` without decoding or preprocessing the sample."""
        ...


class Dataset(Protocol):
    """Samples for calibration and evaluation."""

    num_classes: int | None
    """Number of classes, or None where the samples have no labels."""
    structural: bool
    """True for random data: it shows that a program runs, and no metric of accuracy made with it means anything."""
    calibration: Split
    evaluation: Split
    training: Split | None
    """Samples to learn from, for quantization-aware training; None where the calibration samples serve."""


class DatasetSource(Protocol):
    """A module `pipeline/lowerdeck/datasets/NAME.py`, chosen by `dataset.source: NAME`."""

    Options: type
    """Frozen keyword-only dataclass: what may stand under `dataset.options`."""

    def fingerprint(self, options: Any) -> str:
        """SHA-256 over all content that `load` would read; must not import torch."""
        ...

    def load(self, options: Any, input_shapes: Sequence[Sequence[int]], seed: int) -> Dataset:
        """The dataset, its samples shaped for a model with these input shapes (each with its batch dimension)."""
        ...


class ModelSource(Protocol):
    """A module `pipeline/lowerdeck/models/NAME.py`, chosen by `model.source: NAME`."""

    Options: type
    """Frozen keyword-only dataclass: what may stand under `model.options`."""

    def check(self, options: Any, weights: str | None, plugins: Sequence[str]) -> None:
        """Raise ConfigurationError for a value that `build` would refuse; quick, so without building the model."""
        ...

    def build(self, options: Any, weights: str | None) -> torch.nn.Module:
        """The model in eval mode with its weights loaded."""
        ...
