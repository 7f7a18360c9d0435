"""Image classification datasets of torchvision: calibration from the training split, evaluation from the test split.

`python -m lowerdeck.datasets.torchvision NAME ROOT` downloads one of them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from lowerdeck.contracts.errors import ConfigurationError, LowerdeckError
from lowerdeck.contracts.samples import Sample
from lowerdeck.datasets import preprocessing, splits
from lowerdeck.fingerprints import data
from lowerdeck.registry import components

if TYPE_CHECKING:
    pass

ARCHIVES = (".gz", ".tgz", ".zip")
"""Downloaded archives, which remain next to the data; nothing reads them, so they are not part of the fingerprint."""


Arguments: TypeAlias = tuple[Mapping[str, Any], Mapping[str, Any]]
"""Arguments of a torchvision dataset that select the splits for calibration and for evaluation."""
_TRAIN_FLAG: Arguments = ({"train": True}, {"train": False})
_TRAIN_TEST: Arguments = ({"split": "train"}, {"split": "test"})
_TRAINVAL_TEST: Arguments = ({"split": "trainval"}, {"split": "test"})


@dataclass(frozen=True)
class DatasetFiles:
    """How to open the splits of one torchvision dataset, and where its files are."""

    num_classes: int
    """Number of classes; labels are 0 ... num_classes-1."""
    files: tuple[str, ...]
    """Patterns below root of all files that are read; each matches at least one file of a complete copy."""
    stored: str
    """Attribute with the stored samples, by index: pixel arrays, paths, or (path, label)."""
    arguments: Arguments = _TRAIN_FLAG


# Left out: datasets without a labelled test split (Caltech, EuroSAT, SEMEION, FER2013), those that torchvision can no
# longer download (StanfordCars, ImageNet: choose dataset=image_folder), and PCAM, which needs h5py.
DATASETS: Mapping[str, DatasetFiles] = {
    # torchvision unpickles CIFAR's files. That is safe only because its constructor first compares the MD5 of every
    # file with the published value and raises on any difference; no other dataset here contains pickles.
    "CIFAR10": DatasetFiles(10, ("cifar-10-batches-py/*",), "data"),
    "CIFAR100": DatasetFiles(100, ("cifar-100-python/*",), "data"),
    "Country211": DatasetFiles(211, ("country211/train/**/*", "country211/test/**/*"), "samples", _TRAIN_TEST),
    "DTD": DatasetFiles(47, ("dtd/dtd/labels/*", "dtd/dtd/images/**/*"), "_image_files", _TRAIN_TEST),
    "EMNIST": DatasetFiles(
        47,
        ("EMNIST/*/*balanced*",),
        "data",
        ({"split": "balanced", "train": True}, {"split": "balanced", "train": False}),
    ),
    "FashionMNIST": DatasetFiles(10, ("FashionMNIST/*/*",), "data"),
    "FGVCAircraft": DatasetFiles(100, ("fgvc-aircraft-2013b/data/**/*",), "_image_files", _TRAINVAL_TEST),
    "Flowers102": DatasetFiles(102, ("flowers-102/**/*",), "_image_files", _TRAIN_TEST),
    "Food101": DatasetFiles(101, ("food-101/meta/*", "food-101/images/**/*"), "_image_files", _TRAIN_TEST),
    "GTSRB": DatasetFiles(43, ("gtsrb/**/*",), "_samples", _TRAIN_TEST),
    "Imagenette": DatasetFiles(10, ("imagenette2/**/*",), "_samples", ({"split": "train"}, {"split": "val"})),
    "KMNIST": DatasetFiles(10, ("KMNIST/*/*",), "data"),
    "MNIST": DatasetFiles(10, ("MNIST/*/*",), "data"),
    "OxfordIIITPet": DatasetFiles(
        37, ("oxford-iiit-pet/annotations/*.txt", "oxford-iiit-pet/images/*"), "_images", _TRAINVAL_TEST
    ),
    "RenderedSST2": DatasetFiles(2, ("rendered-sst2/train/**/*", "rendered-sst2/test/**/*"), "_samples", _TRAIN_TEST),
    "STL10": DatasetFiles(10, ("stl10_binary/*",), "data", _TRAIN_TEST),
    "SVHN": DatasetFiles(10, ("train_32x32.mat", "test_32x32.mat"), "data", _TRAIN_TEST),
    "USPS": DatasetFiles(10, ("usps.bz2", "usps.t.bz2"), "data"),
}


@dataclass(frozen=True, kw_only=True)
class Options(preprocessing.ImageOptions):
    """Keys of `dataset.options`."""

    name: str
    """Name of the dataset in torchvision, e.g. CIFAR10 (EMNIST means its balanced split)."""
    root: str
    """Folder in which torchvision stores the data."""
    download: bool = False
    """Whether to download the data if root does not contain it."""


check = preprocessing.check


def fingerprint(options: Options) -> str:
    """SHA-256 over the dataset's files.

    Raises:
        ConfigurationError: the dataset is not supported.
        LowerdeckError: its files are missing, and downloading is off or failed.
    """
    entry = _entry(options.name)
    _ensure_present(options, entry)
    root = Path(options.root)
    return data.files_digest({path.relative_to(root).as_posix(): path for path in _files(options, entry)})


def target_kind(options: Options) -> str:
    """The class of the image."""
    return "class"


def load(options: Options, input_shapes: Sequence[Sequence[int]], seed: int) -> splits.LoadedDataset:
    """The dataset's images, resized and cropped to the model's input, in grey or RGB depending on its channels.

    Args:
        options: see Options
        input_shapes: the model's, [[1, 1 or 3, h, w]]
        seed: fixes the order of the samples

    Raises:
        ConfigurationError: the dataset is not supported, or the options do not fit the model.
        LowerdeckError: its files are missing or damaged.
    """
    entry = _entry(options.name)
    prepare = splits.image_preparation(options, input_shapes)
    _ensure_present(options, entry)
    opened = [_open(options, arguments) for arguments in entry.arguments]
    calibration, evaluation = (
        TorchvisionSplit(stored, entry, prepare, seed, f"{options.name} {name}")
        for name, stored in zip(("calibration", "evaluation"), opened, strict=True)
    )
    names = getattr(opened[1], "classes", ())
    return splits.LoadedDataset(
        num_classes=entry.num_classes,
        calibration=calibration,
        evaluation=evaluation,
        class_names=tuple(map(str, names)) if len(names) == entry.num_classes else (),
        preprocessing=preprocessing.description(options, preprocessing.image_shape(input_shapes)),
    )


class TorchvisionSplit:
    """Samples of one split of a torchvision dataset, decoded on access."""

    def __init__(
        self, dataset: Any, entry: DatasetFiles, prepare: splits.ImagePreparation, seed: int, name: str
    ) -> None:
        """
        Args:
            dataset: a torchvision dataset of (PIL image, label)
            entry: its entry in DATASETS
            prepare: image -> float32 [1 x c x h x w]
            seed: fixes the order
            name: for messages
        """
        if not len(dataset):
            raise LowerdeckError(f"{name} contains no samples; delete its files and download them again")
        self._dataset, self._entry, self._prepare, self._name = dataset, entry, prepare, name
        self.order = splits.seeded_order(len(dataset), seed)

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, index: int) -> Sample:
        row = splits.row_of(self.order, index)
        try:
            image, label = self._dataset[row]
        except (OSError, SyntaxError) as error:
            raise LowerdeckError(f"{self.origin(index)} cannot be decoded: {error}") from error
        if not 0 <= int(label) < self._entry.num_classes:
            raise LowerdeckError(
                f"{self.origin(index)} has label {int(label)}, allowed are 0 ... {self._entry.num_classes - 1}; its "
                "files are not those that torchvision downloads"
            )
        return splits.sample((self._prepare(image),), int(label), self.digest(index))

    def digest(self, index: int) -> str:
        """SHA-256 of the image's file, or of its pixels if one file contains all images."""
        stored = self._stored(index)
        if isinstance(stored, Path):
            return data.file_digest(stored)
        return data.array_digest([np.ascontiguousarray(stored).tobytes()])

    def origin(self, index: int) -> str:
        """Where the sample is stored, for messages."""
        stored = self._stored(index)
        return str(stored) if isinstance(stored, Path) else f"row {self.order[index]} of {self._name}"

    def _stored(self, index: int) -> Any:
        """Path of the image file, or its pixels (an array or tensor)."""
        stored = getattr(self._dataset, self._entry.stored)[splits.row_of(self.order, index)]
        if isinstance(stored, tuple):
            stored = stored[0]
        return Path(stored) if isinstance(stored, (str, os.PathLike)) else stored


def download(name: str, root: str) -> None:
    """Download a dataset's files to `root` unless they exist.

    Raises:
        ConfigurationError: the dataset is not supported.
        LowerdeckError: the network or the server failed, or files differ from the published checksums.
    """
    entry = _entry(name)
    Path(root).mkdir(parents=True, exist_ok=True)
    for arguments in entry.arguments:
        _open(Options(name=name, root=root, download=True), {**arguments, "download": True})


def _entry(name: str) -> DatasetFiles:
    if name not in DATASETS:
        raise ConfigurationError(
            f"dataset.options.name is {name!r}; the supported datasets of torchvision are {', '.join(DATASETS)}."
            f"{components.did_you_mean(name, DATASETS)}"
        )
    return DATASETS[name]


def _files(options: Options, entry: DatasetFiles) -> list[Path]:
    root = Path(options.root)
    found = {path for pattern in entry.files for path in root.glob(pattern) if path.is_file()}
    return sorted(path for path in found if path.suffix not in ARCHIVES)


def _ensure_present(options: Options, entry: DatasetFiles) -> None:
    root = Path(options.root)
    missing = [pattern for pattern in entry.files if not any(path.is_file() for path in root.glob(pattern))]
    if not missing:
        return
    if not options.download:
        raise LowerdeckError(
            f"{options.name} is not in {root} ({', '.join(missing)} missing). Download it with `python -m "
            f"lowerdeck.datasets.torchvision {options.name} {root}`, or set dataset.options.download: true"
        )
    # In a separate process: torchvision imports torch, which a fingerprint must not.
    repository = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-P", "-m", "lowerdeck.datasets.torchvision", options.name, options.root],
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(repository), os.environ.get("PYTHONPATH", "")])},
    )
    if done.returncode != 0:
        cause = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise LowerdeckError(cause[0])


def _open(options: Options, arguments: Mapping[str, Any]) -> Any:
    """torchvision's dataset object for one split."""
    from torchvision import datasets

    try:
        return getattr(datasets, options.name)(root=options.root, **arguments)
    except (RuntimeError, OSError, ValueError, EOFError, KeyError, ImportError) as error:
        reason = " ".join(str(error).split())
        if arguments.get("download"):
            raise LowerdeckError(
                f"{options.name} could not be downloaded to {options.root}: {reason}. Check the network, or copy the "
                "files there from a machine that has them."
            ) from error
        raise LowerdeckError(
            f"{options.name} in {options.root} is incomplete or damaged: {reason}. Delete it there and run "
            f"`python -m lowerdeck.datasets.torchvision {options.name} {options.root}`."
        ) from error


def main(arguments: Sequence[str]) -> int:
    """Download the dataset in `arguments`; return 0 on success."""
    if len(arguments) != 2:
        print(f"usage: python -m lowerdeck.datasets.torchvision NAME ROOT, NAME one of {', '.join(DATASETS)}")
        return 2
    try:
        download(arguments[0], arguments[1])
    except LowerdeckError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
