"""lowerdeck.datasets.torchvision: its table is true of torchvision, and data that is missing or wrong is explained."""

from __future__ import annotations

import hashlib
import inspect
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torchvision import datasets as upstream

from lowerdeck.contracts.errors import ConfigurationError, LowerdeckError
from lowerdeck.datasets import torchvision as source


def write_idx(path: Path, array: npt.NDArray[np.int64]) -> None:
    """MNIST's format: torchvision compares no checksum of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    header = bytes([0, 0, 8, array.ndim]) + b"".join(size.to_bytes(4, "big") for size in array.shape)
    path.write_bytes(header + array.astype(np.uint8).tobytes())


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """FashionMNIST: 12 training and 8 test images, each of one value that tells which it is."""
    for first, split, num_samples in ((0, "train", 12), (100, "t10k", 8)):
        values = first + np.arange(num_samples)
        raw = tmp_path / "FashionMNIST" / "raw"
        write_idx(raw / f"{split}-images-idx3-ubyte", np.tile(values[:, None, None], (1, 28, 28)))
        write_idx(raw / f"{split}-labels-idx1-ubyte", values % 10)
    return tmp_path


def options(root: Path, name: str = "FashionMNIST", **others: Any) -> source.Options:
    return source.Options(name=name, root=str(root), **others)


def test_splits_labels_and_resizing(root: Path) -> None:
    dataset = source.load(options(root), [[1, 3, 32, 32]], seed=0)
    assert dataset.num_classes == 10
    for split, first, num_samples in ((dataset.calibration, 0, 12), (dataset.evaluation, 100, 8)):
        values = []
        for sample in iter(split):
            value = round(float(sample.inputs[0].mean()) * 255)
            assert sample.inputs[0].shape == (1, 3, 32, 32)
            assert torch.allclose(sample.inputs[0], torch.tensor(value / 255), atol=1e-6)
            assert sample.label == value % 10
            assert sample.digest == hashlib.sha256(bytes([value]) * 28 * 28).hexdigest()
            values.append(value)
        assert sorted(values) == list(range(first, first + num_samples))


def test_archives_of_a_download_do_not_count(root: Path) -> None:
    before = source.fingerprint(options(root))
    (root / "FashionMNIST" / "raw" / "train-images-idx3-ubyte.gz").write_bytes(b"archive")
    assert source.fingerprint(options(root)) == before


@pytest.mark.parametrize("name", source.DATASETS)
def test_table_is_true_of_torchvision(name: str) -> None:
    entry, cls = source.DATASETS[name], getattr(upstream, name)
    text = "".join(inspect.getsource(base) for base in cls.__mro__ if base.__module__.startswith("torchvision"))
    assert f"self.{entry.stored}" in text or f"{entry.stored}:" in text
    parameters = {key for base in cls.__mro__ if base is not object for key in inspect.signature(base).parameters}
    for arguments in entry.arguments:
        assert {*arguments, "root", "download"} <= parameters
        assert all(f'"{value}"' in text for value in arguments.values() if isinstance(value, str))
    assert entry.arguments[0] != entry.arguments[1]


@pytest.mark.parametrize("name", source.DATASETS)
def test_files_lie_where_torchvision_looks(name: str) -> None:
    """The first folder or file of every pattern is the class's name or stands in torchvision's source."""
    cls = getattr(upstream, name)
    text = "".join(inspect.getsource(base) for base in cls.__mro__ if base.__module__.startswith("torchvision"))
    for pattern in source.DATASETS[name].files:
        first = pattern.partition("/")[0]
        assert first in (name, name.lower()) or f'"{first}"' in text or f"/{first}." in text


def test_unknown_name() -> None:
    with pytest.raises(ConfigurationError, match=r"'Cifar-10'; .* Did you mean CIFAR10"):
        source.fingerprint(options(Path("x"), "Cifar-10"))


@pytest.mark.parametrize("name", source.DATASETS)
def test_absent_data_says_how_to_get_it(tmp_path: Path, name: str) -> None:
    command = rf"`python -m lowerdeck\.datasets\.torchvision {name} .*`, or set dataset\.options\.download: true"
    with pytest.raises(LowerdeckError, match=command):
        source.fingerprint(options(tmp_path, name))
    with pytest.raises(LowerdeckError, match=command):
        source.load(options(tmp_path, name), [[1, 3, 32, 32]], seed=0)


class Malicious:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.marker),)


def test_cifar_that_fails_its_checksum_is_not_unpickled(tmp_path: Path) -> None:
    marker, folder = tmp_path / "executed", tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch", "batches.meta"):
        (folder / name).write_bytes(pickle.dumps(Malicious(marker)))
    with pytest.raises(
        LowerdeckError, match=r"CIFAR10 in .* is incomplete or damaged: .*corrupted.* Delete it there and run"
    ):
        source.load(options(tmp_path, "CIFAR10"), [[1, 3, 32, 32]], seed=0)
    assert not marker.exists()


def test_incomplete_data(root: Path) -> None:
    (root / "FashionMNIST" / "raw" / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(LowerdeckError, match=r"FashionMNIST in .* is incomplete or damaged"):
        source.load(options(root), [[1, 1, 28, 28]], seed=0)


def test_label_outside_the_classes(root: Path) -> None:
    write_idx(root / "FashionMNIST" / "raw" / "t10k-labels-idx1-ubyte", np.full(8, 10))
    with pytest.raises(LowerdeckError, match=r"has label 10, allowed are 0 ... 9"):
        list(iter(source.load(options(root), [[1, 1, 28, 28]], seed=0).evaluation))


@pytest.mark.slow
def test_download_without_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(variable, "http://127.0.0.1:9")  # a port that nothing listens on
    with pytest.raises(LowerdeckError, match=r"CIFAR10 could not be downloaded to .* Check the network"):
        source.fingerprint(options(tmp_path, "CIFAR10", download=True))


@pytest.mark.slow
def test_command_line(root: Path) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "lowerdeck.datasets.torchvision", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    assert run("FashionMNIST", str(root)).returncode == 0, "what is there needs no download"
    wrong = run("Fashion", str(root))
    assert wrong.returncode == 1
    assert "supported datasets of torchvision" in wrong.stderr
    assert run().returncode == 2
