"""Training on stand-in data learns, and gives the same weights every time."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from data.train_stand_in import RECIPES, Recipe, shifted_or_mirrored, train
from tests.data.test_stand_ins import USED_BY


def two_classes(seed: int) -> tuple[np.ndarray, np.ndarray]:  # type: ignore[type-arg]
    generator = np.random.default_rng(seed)
    labels = np.arange(256) % 2
    inputs = generator.normal(size=(256, 8)).astype(np.float32)
    inputs[:, 0] += 3 * labels
    return inputs, labels


RECIPE = Recipe(network=lambda: nn.Linear(8, 2), examples=two_classes, epochs=6, batch_size=32, learning_rate=0.05)


def test_training_learns_and_is_reproducible() -> None:
    threads = torch.get_num_threads()
    try:
        inputs, labels = map(torch.from_numpy, two_classes(0))
        (first, loss), (again, _) = (train(RECIPE, inputs, labels) for _ in range(2))
        assert loss < 0.4
        assert torch.equal(first.state_dict()["weight"], again.state_dict()["weight"])
        assert not first.training
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(False)


def test_every_network_of_the_benchmark_has_a_recipe() -> None:
    assert set(RECIPES) == {checkpoint for _, checkpoint in USED_BY.values()}


def test_pictures_are_moved_and_mirrored_but_not_changed() -> None:
    torch.manual_seed(0)
    images = torch.arange(2 * 3 * 8 * 8, dtype=torch.float32).reshape(2, 3, 8, 8)
    moved = shifted_or_mirrored(images)
    assert torch.equal(moved.flatten(1).sort()[0], images.flatten(1).sort()[0])
