"""The committed weights are those of the committed report, and are worth what it says."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from data import prepare_digits
from lowerdeck import datasets, models

CHECKPOINTS = Path("data/checkpoints")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("digits")
    prepare_digits.prepare(folder)
    return folder


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    written: dict[str, Any] = json.loads((CHECKPOINTS / "resnet8_digits.json").read_text())
    return written


def test_report_belongs_to_weights_and_data(report: dict[str, Any], prepared: Path) -> None:
    weights = (CHECKPOINTS / "resnet8_digits.safetensors").read_bytes()
    assert report["weights_sha256"] == hashlib.sha256(weights).hexdigest()
    splits = json.loads((prepared / "manifest.json").read_text())["splits"]
    assert report["data_sha256"] == {name: splits[name]["sha256"] for name in ("train", "evaluation")}


def test_accuracy_is_the_reported_one(report: dict[str, Any], prepared: Path) -> None:
    """Through the sources that the pipeline uses: preprocessing is that of training."""
    factory, digits = models.source("factory"), datasets.source("digits")
    model = factory.build(factory.Options(factory=report["network"]), str(CHECKPOINTS / "resnet8_digits.safetensors"))
    evaluation = digits.load(digits.Options(root=str(prepared)), [[1, 3, 32, 32]], seed=0).evaluation
    samples = list(iter(evaluation))
    with torch.inference_mode():
        predicted = model(torch.cat([sample.inputs[0] for sample in samples])).argmax(dim=1)
    num_correct = int((predicted == torch.tensor([sample.label for sample in samples])).sum())
    assert num_correct == report["evaluation"]["num_correct"]
    assert num_correct / len(samples) >= 0.98
