"""Choice of samples from a split, reproducible by seed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice, zip_longest
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.contracts.samples import Dataset, Split, finite_sample

if TYPE_CHECKING:
    import torch

Choice = Literal["first", "random", "stratified"]


@dataclass(frozen=True, kw_only=True)
class ChosenInputs:
    """The inputs of some samples of a split, call by call, decoded on every iteration to save memory."""

    split: Split
    indices: Sequence[int]

    def __len__(self) -> int:
        return len(self.indices)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, ...]]:
        return (call for index in self.indices for call in finite_sample(self.split, index).calls)


def choose(split: Split, count: int | None, choice: Choice, seed: int, *, as_calls: bool = False) -> list[int]:
    """Indices of `count` samples, in the order of the split.

    Args:
        split: The split to choose from.
        count: Number of samples; None for all. A larger number than that of the split also means all.
        choice: `first` samples, `random` ones, or `stratified`: random with equal shares of all classes.
        seed: Seed of the draw.
        as_calls: Whether the samples are consecutive calls of a model with state: `first` and the order of the result
            are then those of the stored samples, which most sources shuffle.

    Raises:
        LowerdeckError: stratified was chosen and the samples have no labels.
    """
    count = len(split) if count is None else min(count, len(split))
    if choice == "stratified" and len(split) and split[0].label is None:
        raise LowerdeckError(
            "quantization.calibration_choice: stratified needs a label with every sample, and these have none; choose "
            "`first` or `random`, or a dataset with labels"
        )
    places = _places(split) if as_calls else range(len(split))
    if choice == "first" or count == len(split):
        return sorted(range(len(split)), key=places.__getitem__)[:count]
    if choice == "random":
        return sorted(np.random.default_rng(seed).permutation(len(split))[:count].tolist(), key=places.__getitem__)
    return sorted(stratified(split, count, seed), key=places.__getitem__)


def _places(split: Split) -> Sequence[Any]:
    """What the stored order of the samples sorts by; streams, each of several calls, do not continue each other."""
    order: Sequence[Any] | None = getattr(split, "order", None)
    return range(len(split)) if order is None or not len(order) or split[0].following else order


def stratified(split: Split, count: int, seed: int) -> list[int]:
    """Indices of `count` random samples, ascending, with shares of classes that differ by at most one sample.

    Samples without labels are one class. Classes that are too small contribute all of their samples.
    """
    drawn = np.random.default_rng(seed).permutation(len(split)).tolist()
    if drawn and split[0].label is None:
        return sorted(drawn[:count])
    classes: dict[int | None, list[int]] = {}
    for index in drawn:
        classes.setdefault(_label(split, index), []).append(index)
    ranked = chain.from_iterable(zip_longest(*classes.values()))
    return sorted(islice((index for index in ranked if index is not None), count))


def _label(split: Split, index: int) -> int | None:
    """`split[index].label`, without decoding the sample where the split can."""
    target = split.target(index) if hasattr(split, "target") else None
    return target if isinstance(target, int) else split[index].label


def training_split(dataset: Dataset) -> Split:
    """The samples for training: the training split, or else the calibration split.

    Raises:
        LowerdeckError: a sample has no label.
    """
    split = getattr(dataset, "training", None) or dataset.calibration  # a dataset of a plug-in may lack the attribute
    if len(split) == 0 or split[0].label is None:
        raise LowerdeckError(
            "quantization.training needs a label with every training sample, and these have none; choose a dataset "
            "with labels, or remove quantization.training"
        )
    return split
