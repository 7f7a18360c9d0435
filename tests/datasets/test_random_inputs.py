"""lowerdeck.datasets.random_inputs: reproducible, structural, and different wherever it has to be."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lowerdeck.contracts.errors import ConfigurationError
from lowerdeck.datasets import random_inputs
from lowerdeck.datasets.splits import LoadedDataset

SHAPES = [[1, 3, 4, 4], [1, 2]]


def load(seed: int = 0, **options: Any) -> LoadedDataset:
    return random_inputs.load(random_inputs.Options(**options), SHAPES, seed)


def test_shapes_lengths_and_labels() -> None:
    dataset = load(num_calibration=3, num_evaluation=200, num_classes=4)
    assert dataset.structural
    assert dataset.num_classes == 4
    assert (len(dataset.calibration), len(dataset.evaluation)) == (3, 200)
    assert [list(x.shape) for x in dataset.evaluation[0].inputs] == SHAPES
    assert {sample.label for sample in iter(dataset.evaluation)} == {0, 1, 2, 3}
    assert [sample.label for sample in iter(load(num_classes=None).calibration)] == [None] * 8


def test_values_are_standard_normal() -> None:
    values = torch.cat([sample.inputs[0].flatten() for sample in iter(load(num_evaluation=200).evaluation)])
    assert abs(float(values.mean())) < 0.05
    assert abs(float(values.std()) - 1) < 0.05


def test_samples_do_not_depend_on_the_order_of_access_or_torchs_seed() -> None:
    torch.manual_seed(1)
    forwards = [sample.inputs[0] for sample in iter(load().evaluation)]
    torch.manual_seed(2)
    split = load().evaluation
    for index in reversed(range(len(split))):
        assert torch.equal(split[index].inputs[0], forwards[index])


def test_every_sample_differs_between_seeds_splits_and_indices() -> None:
    samples = [s for seed in (0, 1) for split in (load(seed).calibration, load(seed).evaluation) for s in iter(split)]
    assert len({sample.digest for sample in samples}) == len(samples)
    assert len({sample.inputs[0].numpy().tobytes() for sample in samples}) == len(samples)


def test_fingerprint_follows_the_options() -> None:
    default = random_inputs.fingerprint(random_inputs.Options())
    assert default == random_inputs.fingerprint(random_inputs.Options(num_calibration=8))
    assert default != random_inputs.fingerprint(random_inputs.Options(num_calibration=9))


def test_refusals() -> None:
    with pytest.raises(ValueError, match=r"num_evaluation is 0; it must be from 1 to 1,000,000"):
        random_inputs.Options(num_evaluation=0)
    with pytest.raises(ConfigurationError, match=r"begin with a batch dimension of 1"):
        random_inputs.load(random_inputs.Options(), [[2, 3]], 0)
