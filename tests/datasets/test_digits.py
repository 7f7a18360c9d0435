"""lowerdeck.datasets.digits: exact pixels, and files that are not what the manifest describes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from data import prepare_digits
from lowerdeck.contracts.errors import ConfigurationError, LowerdeckError
from lowerdeck.datasets import digits
from lowerdeck.datasets.overlap import check_disjoint

REMEDY = r"run `dvc repro data/dvc\.yaml`"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    prepare_digits.prepare(tmp_path)
    return tmp_path


@pytest.mark.parametrize("channels", [1, 3])
def test_pixels_are_the_stored_ones_over_255(root: Path, channels: int) -> None:
    split = digits.load(digits.Options(root=str(root)), [[1, channels, 32, 32]], seed=0).evaluation
    stored = load_file(root / "evaluation.safetensors")
    expected = {
        (image.astype(np.float32) / np.float32(255)).tobytes(): label
        for image, label in zip(stored["images"], stored["labels"], strict=True)
    }
    assert len(split) == 360
    for sample in iter(split):
        (x,) = sample.inputs
        assert x.shape == (1, channels, 32, 32)
        assert all(expected[x[0, channel].numpy().tobytes()] == sample.label for channel in range(channels))


def test_number_of_classes_and_samples(root: Path) -> None:
    dataset = digits.load(digits.Options(root=str(root)), [[1, 3, 32, 32]], seed=0)
    assert (dataset.num_classes, len(dataset.calibration), len(dataset.evaluation)) == (10, 128, 360)
    assert not dataset.structural
    first = {dataset.calibration[index].label for index in range(40)}
    assert len(first) >= 8, "the first samples have to be a fair draw of the classes"


def test_training_samples_are_others_than_those_of_calibration_and_evaluation(root: Path) -> None:
    dataset = digits.load(digits.Options(root=str(root)), [[1, 3, 32, 32]], seed=0)
    assert dataset.training is not None
    assert len(dataset.training) == 1797 - 128 - 360
    assert dataset.training[0].label is not None
    for other in (dataset.calibration, dataset.evaluation):
        check_disjoint(dataset.training, other, "training")


def test_fingerprint_follows_what_is_read(root: Path) -> None:
    options = digits.Options(root=str(root))
    before = digits.fingerprint(options)
    manifest = root / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"9"', '"nine"'))
    assert digits.fingerprint(options) != before


def test_changed_file(root: Path) -> None:
    path = root / "evaluation.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    options = digits.Options(root=str(root))
    for act in (lambda: digits.fingerprint(options), lambda: digits.load(options, [[1, 3, 32, 32]], seed=0)):
        with pytest.raises(LowerdeckError, match=rf"evaluation\.safetensors has SHA-256 .* changed .*{REMEDY}"):
            act()


@pytest.mark.parametrize("name", ["manifest.json", "calibration.safetensors"])
def test_missing_file(root: Path, name: str) -> None:
    (root / name).unlink()
    with pytest.raises(LowerdeckError, match=rf"{name} is missing: {REMEDY}"):
        digits.fingerprint(digits.Options(root=str(root)))


def test_manifest_that_is_no_json(root: Path) -> None:
    (root / "manifest.json").write_text("{")
    with pytest.raises(LowerdeckError, match=rf"is not the manifest that preparing writes .*{REMEDY}"):
        digits.fingerprint(digits.Options(root=str(root)))


def test_model_of_another_size(root: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"the digits are 32x32 pixels: allowed are \[\[1, 1, 32, 32\]\]"):
        digits.load(digits.Options(root=str(root)), [[1, 3, 224, 224]], seed=0)


def test_samples_do_not_share_memory_with_the_store(root: Path) -> None:
    split = digits.load(digits.Options(root=str(root)), [[1, 1, 32, 32]], seed=0).calibration
    before = split[0].inputs[0].clone()
    split[0].inputs[0].fill_(7)
    assert torch.equal(split[0].inputs[0], before)
