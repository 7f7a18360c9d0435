"""What a model learns from: a dataset's training samples, or those of calibration."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.datasets import arrays
from lowerdeck.datasets.choice import training_split
from lowerdeck.datasets.splits import LoadedDataset


def load(folder: Path, *, training: bool, labels: bool = True) -> tuple[arrays.Options, LoadedDataset]:
    for seed, name in enumerate(("calibration", "evaluation", "training")):
        values = np.random.RandomState(seed).randn(3, 4).astype(np.float32)
        np.savez(folder / f"{name}.npz", inputs=values, **({"labels": np.array([0, 1, 0])} if labels else {}))
    names = ("calibration", "evaluation", *(["training"] if training else []))
    files: dict[str, Any] = {name: str(folder / f"{name}.npz") for name in names}
    options = arrays.Options(**files, num_classes=2)
    return options, arrays.load(options, [[1, 4]], seed=0)


def test_a_file_for_training_is_read_and_part_of_the_fingerprint(tmp_path: Path) -> None:
    options, dataset = load(tmp_path, training=True)
    assert dataset.training is not None
    assert training_split(dataset) is dataset.training
    assert {dataset.training.digest(index) for index in range(3)}.isdisjoint(
        dataset.calibration.digest(index) for index in range(3)
    )
    before = arrays.fingerprint(options)
    np.savez(tmp_path / "training.npz", inputs=np.zeros((1, 4), np.float32), labels=np.array([1]))
    assert arrays.fingerprint(options) != before


def test_without_one_the_calibration_samples_serve(tmp_path: Path) -> None:
    _, dataset = load(tmp_path, training=False)
    assert dataset.training is None
    assert training_split(dataset) is dataset.calibration
    plugin = SimpleNamespace(calibration=dataset.calibration)  # written before there were training splits
    assert training_split(plugin) is dataset.calibration


def test_samples_without_labels_teach_nothing(tmp_path: Path) -> None:
    _, dataset = load(tmp_path, training=True, labels=False)
    with pytest.raises(LowerdeckError, match="needs a label with every training sample"):
        training_split(dataset)
