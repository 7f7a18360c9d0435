"""lowerdeck.datasets.choice: which samples are taken."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.contracts.samples import Sample, finite_sample
from lowerdeck.datasets import random_inputs
from lowerdeck.datasets.choice import Choice, ChosenInputs, choose
from lowerdeck.datasets.splits import ArraySplit, LoadedDataset, seeded_order
from lowerdeck.execution.chosen.calibration import chosen_samples
from tests.handmade_build import write_config


class Sorted:
    """30 samples of class 0, then 20 of class 1, then 10 of class 2."""

    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> Sample:
        return Sample(inputs=(), label=0 if index < 30 else 1 if index < 50 else 2, digest=self.digest(index))

    def digest(self, index: int) -> str:
        return str(index)


def unlabelled() -> LoadedDataset:
    return random_inputs.load(random_inputs.Options(num_classes=None), [[1, 3, 4, 4]], seed=0)


def test_the_first_ones_are_at_the_start() -> None:
    assert choose(Sorted(), 4, "first", seed=5) == [0, 1, 2, 3]


@pytest.mark.parametrize("choice", ["random", "stratified"])
def test_what_is_drawn_depends_on_the_seed_alone(choice: Choice) -> None:
    drawn = [choose(Sorted(), 12, choice, seed) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert all(indices == sorted(set(indices)) and len(indices) == 12 for indices in drawn)
    assert drawn[0] != list(range(12))


def test_stratified_takes_equal_shares_of_all_classes() -> None:
    labels = [Sorted()[index].label for index in choose(Sorted(), 12, "stratified", seed=0)]
    assert [labels.count(label) for label in (0, 1, 2)] == [4, 4, 4]


def test_small_classes_give_all_that_they_have() -> None:
    labels = [Sorted()[index].label for index in choose(Sorted(), 40, "stratified", seed=0)]
    assert [labels.count(label) for label in (0, 1, 2)] == [15, 15, 10]


@pytest.mark.parametrize("choice", ["first", "random", "stratified"])
@pytest.mark.parametrize("count", [None, 60, 100])
def test_all_of_them_are_all_of_them(choice: Choice, count: int | None) -> None:
    assert choose(Sorted(), count, choice, seed=0) == list(range(60))


@pytest.mark.parametrize(("choice", "count"), [("first", 12), ("random", 12), ("stratified", 12), ("random", None)])
def test_calls_of_a_model_with_state_are_in_their_stored_order(choice: Choice, count: int | None) -> None:
    """They were in the order that the seed shuffles, so that states were never those of the stored stream."""
    values, labels = np.arange(60, dtype=np.float32)[:, np.newaxis], np.arange(60) % 3
    order = seeded_order(60, 0)
    split = ArraySplit(stored=(values,), labels=labels, prepare=lambda arrays: arrays, order=order, name="mine.npz")
    rows = [int(split[index].inputs[0]) for index in choose(split, count, choice, seed=0, as_calls=True)]
    assert rows == sorted(rows)
    assert len(rows) == (count or 60)
    assert choice != "first" or rows == list(range(12))  # without gaps
    assert choose(Sorted(), 12, "first", seed=0, as_calls=True) == list(range(12))  # a split that does not say


def test_streams_that_are_whole_are_taken_in_the_shuffled_order() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Streams(ArraySplit):
        def __getitem__(self, index: int) -> Sample:
            sample = super().__getitem__(index)
            return replace(sample, following=(sample.inputs,))

    values, order = np.zeros((9, 1), np.float32), seeded_order(9, 0)
    split = Streams(stored=(values,), labels=None, prepare=lambda arrays: arrays, order=order, name="mine.npz")
    assert choose(split, 4, "first", seed=0, as_calls=True) == [0, 1, 2, 3]


def test_samples_without_labels_cannot_be_stratified() -> None:
    split = unlabelled().calibration
    with pytest.raises(LowerdeckError, match=r"stratified needs a label.*choose `first` or `random`"):
        choose(split, 4, "stratified", seed=0)
    assert len(choose(split, 4, "random", seed=0)) == 4


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_samples_that_are_not_finite_are_named(value: float) -> None:
    stored = np.zeros((3, 2, 4), np.float32)
    stored[2, 0, :3] = value
    split = ArraySplit(stored=(stored,), labels=None, prepare=lambda arrays: arrays, order=(1, 2, 0), name="mine.npz")
    assert finite_sample(split, 0).inputs[0].shape == (1, 2, 4)
    message = r"sample 1 \(row 2 of mine\.npz\): 3 of 8 values of input 0 are NaN or infinite"
    with pytest.raises(LowerdeckError, match=message):
        list(ChosenInputs(split=split, indices=[0, 1]))


@pytest.mark.parametrize(("asked", "said"), [(1000, True), (60, False), (None, False)])
def test_calibration_says_when_it_uses_fewer_samples_than_asked_for(
    asked: int | None, said: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_config(quantization={"num_calibration_samples": asked})
    assert chosen_samples(Sorted(), 0) == list(range(60))
    line = "calibrate: uses the 60 calibration samples of the data set, which has no more"
    assert (line in capsys.readouterr().out) is said


def test_labels_are_read_without_decoding() -> None:
    """To choose 8 of 50,000 pictures, all of them were decoded."""

    class Undecoded(Sorted):
        def __getitem__(self, index: int) -> Sample:
            assert index == 0, "decoded"
            return super().__getitem__(index)

        def target(self, index: int) -> int:
            label = Sorted()[index].label
            assert label is not None
            return label

    assert choose(Undecoded(), 12, "stratified", seed=3) == choose(Sorted(), 12, "stratified", seed=3)
