"""Image classification datasets of torchvision: calibration from the training split, evaluation from the test split.

`python -m lowerdeck.datasets.torchvision NAME ROOT` downloads one of them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from lowerdeck.contracts.errors import ConfigurationError, LowerdeckError
from lowerdeck.contracts.samples import Sample
from lowerdeck.datasets import content, preprocessing, splits
from lowerdeck.registry import components

if TYPE_CHECKING:
    from PIL import Image

ARCHIVES = (".gz", ".tgz", ".zip")
"""What a download leaves beside the data; nothing reads it, so it is not part of the fingerprint."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """How to open the splits of one torchvision dataset, and where its files are."""

    num_classes: int
    """Number of classes; labels are 0 ... num_classes-1."""
    files: tuple[str, ...]
    """Patterns below root of all files that are read; each matches at least one file of a complete copy."""
    stored: str
    """Attribute with the stored samples, by index: pixel arrays, paths, or (path, label)."""
    calibration: Mapping[str, Any] = field(default_factory=lambda: {"train": True})
    """Arguments that select the split for calibration."""
    evaluation: Mapping[str, Any] = field(default_factory=lambda: {"train": False})
    """Arguments that select the split for evaluation."""


def _by_split(train: str, test: str) -> dict[str, Mapping[str, Any]]:
    return {"calibration": {"split": train}, "evaluation": {"split": test}}


# Left out: what has no labelled test split (Caltech, EuroSAT, SEMEION, FER2013), what torchvision cannot download any
# more (StanfordCars, ImageNet: choose dataset=image_folder), and PCAM, which needs h5py.
DATASETS: Mapping[str, Entry] = {
    # torchvision unpickles CIFAR's files. That is safe only because its constructor compares the MD5 of every one of
    # them with the published value first and raises on any difference; no other dataset here contains pickles.
    "CIFAR10": Entry(num_classes=10, files=("cifar-10-batches-py/*",), stored="data"),
    "CIFAR100": Entry(num_classes=100, files=("cifar-100-python/*",), stored="data"),
    "Country211": Entry(
        num_classes=211,
        files=("country211/train/**/*", "country211/test/**/*"),
        stored="samples",
        **_by_split("train", "test"),
    ),
    "DTD": Entry(
        num_classes=47,
        files=("dtd/dtd/labels/*", "dtd/dtd/images/**/*"),
        stored="_image_files",
        **_by_split("train", "test"),
    ),
    "EMNIST": Entry(
        num_classes=47,
        files=("EMNIST/*/*balanced*",),
        stored="data",
        calibration={"split": "balanced", "train": True},
        evaluation={"split": "balanced", "train": False},
    ),
    "FashionMNIST": Entry(num_classes=10, files=("FashionMNIST/*/*",), stored="data"),
    "FGVCAircraft": Entry(
        num_classes=100,
        files=("fgvc-aircraft-2013b/data/**/*",),
        stored="_image_files",
        **_by_split("trainval", "test"),
    ),
    "Flowers102": Entry(
        num_classes=102, files=("flowers-102/**/*",), stored="_image_files", **_by_split("train", "test")
    ),
    "Food101": Entry(
        num_classes=101,
        files=("food-101/meta/*", "food-101/images/**/*"),
        stored="_image_files",
        **_by_split("train", "test"),
    ),
    "GTSRB": Entry(num_classes=43, files=("gtsrb/**/*",), stored="_samples", **_by_split("train", "test")),
    "Imagenette": Entry(num_classes=10, files=("imagenette2/**/*",), stored="_samples", **_by_split("train", "val")),
    "KMNIST": Entry(num_classes=10, files=("KMNIST/*/*",), stored="data"),
    "MNIST": Entry(num_classes=10, files=("MNIST/*/*",), stored="data"),
    "OxfordIIITPet": Entry(
        num_classes=37,
        files=("oxford-iiit-pet/annotations/*.txt", "oxford-iiit-pet/images/*"),
        stored="_images",
        **_by_split("trainval", "test"),
    ),
    "RenderedSST2": Entry(
        num_classes=2,
        files=("rendered-sst2/train/**/*", "rendered-sst2/test/**/*"),
        stored="_samples",
        **_by_split("train", "test"),
    ),
    "STL10": Entry(num_classes=10, files=("stl10_binary/*",), stored="data", **_by_split("train", "test")),
    "SVHN": Entry(
        num_classes=10, files=("train_32x32.mat", "test_32x32.mat"), stored="data", **_by_split("train", "test")
    ),
    "USPS": Entry(num_classes=10, files=("usps.bz2", "usps.t.bz2"), stored="data"),
}


@dataclass(frozen=True, kw_only=True)
class Options(preprocessing.ImageOptions):
    """What may stand under `dataset.options`."""

    name: str
    """Which dataset, as torchvision spells it, e.g. CIFAR10 (EMNIST means its balanced split)."""
    root: str
    """Folder that torchvision keeps the data below."""
    download: bool = False
    """Whether to download the data where root lacks it."""


def fingerprint(options: Options) -> str:
    """SHA-256 over the dataset's files.

    Raises:
        ConfigurationError: no dataset of this name.
        LowerdeckError: its files are missing, and downloading is off or failed.
    """
    entry = _entry(options.name)
    _ensure_present(options, entry)
    root = Path(options.root)
    return content.files_digest({path.relative_to(root).as_posix(): path for path in _files(options, entry)})


def load(options: Options, input_shapes: Sequence[Sequence[int]], seed: int) -> splits.LoadedDataset:
    """The dataset's images, resized and cropped to the model's input, grey or RGB as its channels say.

    Args:
        options: see Options
        input_shapes: the model's, [[1, 1 or 3, h, w]]
        seed: fixes the order of the samples

    Raises:
        ConfigurationError: no dataset of this name, or options that do not fit the model.
        LowerdeckError: its files are missing or damaged.
    """
    entry = _entry(options.name)
    shape = preprocessing.image_shape(input_shapes)
    preprocessing.check_channels(options.mean, shape[0])
    preprocessing.check_crop(options.resize, shape)
    _ensure_present(options, entry)

    def prepare(image: Image.Image) -> npt.NDArray[np.float32]:
        pixels = preprocessing.image_pixels(image, shape, options.resize, options.interpolation)
        return preprocessing.normalised(pixels[np.newaxis], preprocessing.PIXEL_SCALE, options.mean, options.std)

    calibration, evaluation = (
        TorchvisionSplit(_open(options, arguments), entry, prepare, seed, f"{options.name} {name}")
        for name, arguments in (("calibration", entry.calibration), ("evaluation", entry.evaluation))
    )
    return splits.LoadedDataset(num_classes=entry.num_classes, calibration=calibration, evaluation=evaluation)


class TorchvisionSplit:
    """Samples of one split of a torchvision dataset, decoded on access."""

    def __init__(
        self,
        dataset: Any,
        entry: Entry,
        prepare: Callable[[Image.Image], npt.NDArray[np.float32]],
        seed: int,
        name: str,
    ) -> None:
        """
        Args:
            dataset: torchvision's, giving (PIL image, label)
            entry: what DATASETS says about it
            prepare: image -> float32 [1 x c x h x w]
            seed: fixes the order
            name: for messages
        """
        if not len(dataset):
            raise LowerdeckError(f"{name} holds no samples; delete its files and download them again")
        self._dataset, self._entry, self._prepare, self._name = dataset, entry, prepare, name
        self._order = splits.seeded_order(len(dataset), seed)

    def __len__(self) -> int:
        return len(self._order)

    def __getitem__(self, index: int) -> Sample:
        row = splits.row_of(self._order, index)
        try:
            image, label = self._dataset[row]
        except (OSError, SyntaxError) as error:
            raise LowerdeckError(f"{self.origin(index)} cannot be decoded: {error}") from error
        if not 0 <= int(label) < self._entry.num_classes:
            raise LowerdeckError(
                f"{self.origin(index)} has label {int(label)}, allowed are 0 ... {self._entry.num_classes - 1}; its "
                "files "
                "are not those that torchvision downloads"
            )
        return splits.sample((self._prepare(image),), int(label), self.digest(index))

    def digest(self, index: int) -> str:
        """SHA-256 of the image's file, or of its pixels where one file holds them all."""
        stored = self._stored(index)
        if isinstance(stored, Path):
            return content.file_digest(stored)
        return content.array_digest([np.ascontiguousarray(stored).tobytes()])

    def origin(self, index: int) -> str:
        """Where the sample is stored, for messages."""
        stored = self._stored(index)
        return str(stored) if isinstance(stored, Path) else f"row {self._order[index]} of {self._name}"

    def _stored(self, index: int) -> Any:
        """Path of the image file, or its pixels (an array or tensor)."""
        stored = getattr(self._dataset, self._entry.stored)[splits.row_of(self._order, index)]
        if isinstance(stored, tuple):
            stored = stored[0]
        return Path(stored) if isinstance(stored, (str, os.PathLike)) else stored


def download(name: str, root: str) -> None:
    """Fetch a dataset's files into `root`, unless they are there already.

    Raises:
        ConfigurationError: no dataset of this name.
        LowerdeckError: the network or the server failed, or files differ from the published checksums.
    """
    entry = _entry(name)
    Path(root).mkdir(parents=True, exist_ok=True)
    for arguments in (entry.calibration, entry.evaluation):
        _open(Options(name=name, root=root, download=True), {**arguments, "download": True})


def _entry(name: str) -> Entry:
    if name not in DATASETS:
        raise ConfigurationError(
            f"dataset.options.name is {name!r}; the supported datasets of torchvision are {', '.join(DATASETS)}."
            f"{components.did_you_mean(name, DATASETS)}"
        )
    return DATASETS[name]


def _files(options: Options, entry: Entry) -> list[Path]:
    root = Path(options.root)
    found = {path for pattern in entry.files for path in root.glob(pattern) if path.is_file()}
    return sorted(path for path in found if path.suffix not in ARCHIVES)


def _ensure_present(options: Options, entry: Entry) -> None:
    root = Path(options.root)
    missing = [pattern for pattern in entry.files if not any(path.is_file() for path in root.glob(pattern))]
    if not missing:
        return
    if not options.download:
        raise LowerdeckError(
            f"{options.name} is not in {root} ({', '.join(missing)} missing). Download it with `python -m "
            "lowerdeck.datasets.torchvision "
            f"{options.name} {root}`, or set dataset.options.download: true"
        )
    # In a process of its own: torchvision imports torch, and a fingerprint must not.
    repository = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-m", "lowerdeck.datasets.torchvision", options.name, options.root],
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
    """Download the dataset that the command line names; 0 on success."""
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
