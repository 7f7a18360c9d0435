"""The interfaces of datasets and models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from lowerdeck.contracts.errors import LowerdeckError

if TYPE_CHECKING:
    import torch

    from lowerdeck.contracts.backends import DynamicDimension

TARGET_KINDS = ("class", "array", "mask", "boxes", "events")
"""Kinds of targets: a class index, an array of any shape (`array`), one class index for every pixel (`mask`),
contracts.detection.Boxes (`boxes`), or the times at which something happens in a stream (`events`)."""


@dataclass(frozen=True, kw_only=True)
class FrontEndVector:
    """What a front end computed the inputs of a sample from, so that firmware can check its own."""

    parameters: Mapping[str, Any]
    """Of the front end, plain values by name."""
    signal: Any
    """float32 [n]: the part of the recording that the inputs of the first call depend on."""
    features: Any
    """float32 [frames x features], before they are arranged for the model and quantized."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One example, preprocessed for the model."""

    inputs: tuple[torch.Tensor, ...]
    """The model's inputs in order, each with its batch dimension, e.g. (float32 [1 x c x h x w],). Of a stream they
    are those of the first call."""
    label: int | None
    """Class index, or None where the dataset has no labels."""
    digest: str
    """Hexadecimal SHA-256 of the stored sample before preprocessing: equal digests mean the same sample."""
    target: Any = None
    """What a task compares the outputs with where it is no class index: a NumPy array of any shape, or a mapping of
    named arrays; None where `label` says all."""
    following: tuple[tuple[torch.Tensor, ...], ...] = ()
    """The inputs of the calls after the first one, where the sample is a stream: state lasts from call to call."""

    front_end: FrontEndVector | None = None
    """How the inputs came about, where a front end computed them."""

    @property
    def calls(self) -> tuple[tuple[torch.Tensor, ...], ...]:
        """The inputs of all calls; one where the sample is no stream."""
        return (self.inputs, *self.following)

    @property
    def expected(self) -> Any:
        """The target, or else the label; None where the sample has neither."""
        return self.label if self.target is None else self.target


class Split(Protocol):
    """An ordered, finite part of a dataset; iterating it twice gives the same samples."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Sample:
        """Return sample number `index`, 0 <= index < len(self); raise IndexError otherwise."""
        ...

    def digest(self, index: int) -> str:
        """Return `self[index].digest` without decoding or preprocessing the sample."""
        ...

    # A split may define `origin(index)`, the file or row of a sample for messages, and `target(index)`, which returns
    # `self[index].expected` without the inputs: export then checks all targets of the evaluation samples. A split that
    # is shuffled defines `order`, the stored row of every sample: models with state are calibrated in that of the rows.


def finite_sample(split: Split, index: int) -> Sample:
    """Sample `index` of a split.

    Raises:
        LowerdeckError: it has NaN or infinite values, which would make every range and metric meaningless.
    """
    sample = split[index]
    for number, tensor in ((number, tensor) for call in sample.calls for number, tensor in enumerate(call)):
        if tensor.is_floating_point() and (count := int((~tensor.isfinite()).sum())):
            raise LowerdeckError(
                f"{_named(split, index)}: {count} of {tensor.numel()} values of input {number} are NaN or infinite; "
                "remove or correct the sample"
            )
    return sample


def check_shapes(
    split: Split,
    index: int,
    sample: Sample,
    input_shapes: Sequence[Sequence[int]],
    dynamic_dimensions: Sequence[DynamicDimension],
) -> None:
    """Raise LowerdeckError where inputs of `sample`, number `index` of a split, have not the shapes of the model's.

    Args:
        split: Names the sample in the message.
        index: See `split`.
        sample: All calls of it are checked.
        input_shapes: Shape of every input of the model with its batch dimension.
        dynamic_dimensions: Dimensions whose size may be another one within limits.
    """
    sizes = {(each.input, each.dim): each for each in dynamic_dimensions}

    def fits(size: int, wanted: int, dynamic: DynamicDimension | None) -> bool:
        if dynamic is None:
            return size == wanted
        return dynamic.min <= size <= dynamic.max and not size % dynamic.multiple_of

    for call in sample.calls:
        given = [list(value.shape) for value in call]
        is_alike = [len(shape) for shape in given] == [len(shape) for shape in input_shapes] and all(
            fits(size, input_shapes[number][dim], sizes.get((number, dim)))
            for number, shape in enumerate(given)
            for dim, size in enumerate(shape)
        )
        if not is_alike:
            wanted = ", ".join(str(list(shape)) for shape in input_shapes)
            raise LowerdeckError(
                f"{_named(split, index)}: its inputs have the shapes {', '.join(map(str, given))}, and the model takes "
                f"{wanted} (model.input_shapes{' and model.dynamic_shapes' if sizes else ''}). Let the dataset "
                "(`dataset`) give inputs of these shapes, each with a batch dimension, or correct model.input_shapes"
            )


def _named(split: Split, index: int) -> str:
    origin = getattr(split, "origin", None)
    return f"sample {index}" + (f" ({origin(index)})" if origin is not None else "")


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

    # A dataset may define `class_names`, the names of the classes in the order of their indices, and `preprocessing`,
    # what was done to a stored sample before it became the model's input, as plain values for the firmware bundle.


def class_names(dataset: Dataset) -> tuple[str, ...]:
    """The names of a dataset's classes; empty where it has none."""
    return tuple(getattr(dataset, "class_names", ()))


def described_preprocessing(dataset: Dataset) -> Mapping[str, Any] | None:
    """What was done to a stored sample before it became the model's input; None where the dataset does not say."""
    return getattr(dataset, "preprocessing", None)


class DatasetSource(Protocol):
    """A module `pipeline/lowerdeck/datasets/NAME.py`, chosen by `dataset.source: NAME`."""

    Options: type
    """Frozen keyword-only dataclass that validates `dataset.options`."""

    def fingerprint(self, options: Any) -> str:
        """Return the SHA-256 over all content that `load` would read; must not import torch."""
        ...

    # A source may define `check(options, input_shapes)`, which raises ConfigurationError where the options cannot fit
    # the model, without reading data; compose calls it. It may define `target_kind(options)`, which returns the kind
    # of its targets (TARGET_KINDS) or None without any, so that compose refuses a task that needs others. Its `load`
    # may have a parameter `input_dtypes`, for the dtypes of the model's inputs by name, e.g. ["int64"].

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

    # A source may define `class_names(options, weights)`, the names of the classes that come with the weights, and
    # `fit_random(model, input_shapes)`, which completes the random weights of what `build` returns without any.
