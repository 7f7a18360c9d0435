"""CIFAR-10's binary version, as its archive unpacks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lowerdeck.contracts.errors import ConfigurationError, LowerdeckError
from lowerdeck.datasets import cifar10_binary
from tests.datasets import published

SHAPES = [[1, 3, 32, 32]]


def test_pixels_and_labels_are_those_of_the_records(tmp_path: Path) -> None:
    dataset = cifar10_binary.load(cifar10_binary.Options(**published.make_cifar10_binary(tmp_path)), SHAPES, seed=0)
    assert (dataset.num_classes, len(dataset.calibration), len(dataset.evaluation)) == (10, 50, 10)
    records = np.fromfile(tmp_path / "cifar-10-batches-bin" / "test_batch.bin", dtype=np.uint8).reshape(10, 3073)
    pictures = {record[0]: record[1:].reshape(3, 32, 32) for record in records}
    for sample in iter(dataset.evaluation):
        assert sample.label is not None
        assert np.allclose(sample.inputs[0][0].numpy(), pictures[sample.label] / 255, atol=1e-6)
    assert list(dataset.class_names) == (tmp_path / "cifar-10-batches-bin" / "batches.meta.txt").read_text().split()
    assert dataset.preprocessing is not None
    assert (dataset.preprocessing["channels"], dataset.preprocessing["height"]) == ("RGB", 32)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("data_batch_3.bin", None, r"lacks data_batch_3.bin; download cifar-10-binary.tar.gz \(not the Python version"),
        ("test_batch.bin", b"\0" * 3000, "has 3,000 bytes, and records have 3073"),
        ("test_batch.bin", b"\x0b" + b"\0" * 3072, "has the class 11 of 10"),
    ],
)
def test_an_incomplete_or_damaged_copy_is_refused(
    tmp_path: Path, name: str, content: bytes | None, message: str
) -> None:
    options = cifar10_binary.Options(**published.make_cifar10_binary(tmp_path))
    path = tmp_path / "cifar-10-batches-bin" / name
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(LowerdeckError, match=message):
        cifar10_binary.load(options, SHAPES, seed=0)


def test_a_model_of_another_shape_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"allowed is \[\[1, 3, 32, 32\]\]"):
        cifar10_binary.check(cifar10_binary.Options(root=str(tmp_path)), [[1, 1, 32, 32]])
