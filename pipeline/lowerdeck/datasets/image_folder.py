"""Images on disk: `calibration/` and `evaluation/` below one folder, each with one folder per class.

    root/calibration/cat/001.jpg      root/evaluation/cat/100.jpg
    root/calibration/dog/001.jpg      root/evaluation/dog/100.jpg

The class index is the position of the folder's name among the sorted names. Calibration needs no labels, so its images
may also be in one flat folder. PIL decodes an image on access, as stored (no EXIF rotation).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.contracts.samples import Sample
from lowerdeck.datasets import preprocessing, splits
from lowerdeck.fingerprints import data
from lowerdeck.formats.folders import walk
from lowerdeck.registry.bundled_data import where_to_get

SUFFIXES = (".bmp", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
_DESKTOP_METADATA_FILES = ("thumbs.db", "desktop.ini")


@dataclass(frozen=True, kw_only=True)
class Options(preprocessing.ImageOptions):
    """Keys of `dataset.options`."""

    root: str
    """Folder with `evaluation/` below it, and `calibration/` unless the option `calibration` names another."""
    calibration: str | None = None
    """Another folder with calibration images, e.g. the training set; null for `calibration/` below root."""


@dataclass(frozen=True, kw_only=True)
class Listing:
    """The files of one split, in the order of their paths."""

    folder: Path
    files: tuple[Path, ...]
    labels: tuple[int | None, ...]
    classes: tuple[str, ...]


check = preprocessing.check


def target_kind(options: Options) -> str:
    """The class folder."""
    return "class"


def fingerprint(options: Options) -> str:
    """SHA-256 over every image of both splits with its path below its split's folder.

    Raises:
        LowerdeckError: a folder is missing, empty or laid out differently, or files are no images.
    """
    calibration, evaluation = listings(Path(options.root), options.calibration)
    files = {
        f"{name}/{path.relative_to(listing.folder).as_posix()}": path
        for name, listing in (("calibration", calibration), ("evaluation", evaluation))
        for path in listing.files
    }
    preprocessing.check_images(options.root, files.values())
    return data.files_digest(files)


def load(options: Options, input_shapes: Sequence[Sequence[int]], seed: int) -> splits.LoadedDataset:
    """The images, resized and cropped to the model's input, in grey or RGB depending on its channels.

    Args:
        options: see Options
        input_shapes: the model's, [[1, 1 or 3, h, w]]
        seed: fixes the order of the samples

    Raises:
        ConfigurationError: options that do not fit the model.
        LowerdeckError: a folder is missing, empty or laid out differently.
    """
    prepare = splits.image_preparation(options, input_shapes)
    calibration, evaluation = listings(Path(options.root), options.calibration)
    return splits.LoadedDataset(
        num_classes=len(evaluation.classes),
        calibration=ImageFileSplit(calibration.files, calibration.labels, prepare, seed),
        evaluation=ImageFileSplit(evaluation.files, evaluation.labels, prepare, seed),
        class_names=evaluation.classes,
        preprocessing=preprocessing.description(options, preprocessing.image_shape(input_shapes)),
    )


class ImageFileSplit:
    """Samples that are image files, decoded on access."""

    def __init__(
        self,
        files: Sequence[Path],
        labels: Sequence[int | None],
        prepare: splits.ImagePreparation,
        seed: int,
        target: Callable[[int], Any] | None = None,
    ) -> None:
        """
        Args:
            files: one image per sample
            labels: one label per sample, or None
            prepare: image -> float32 [1 x c x h x w]
            seed: fixes the order
            target: row -> what the outputs are compared with, where that is no label
        """
        self._target = target
        self._files, self._labels, self._prepare = files, labels, prepare
        self.order = splits.seeded_order(len(files), seed)

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, index: int) -> Sample:
        row = splits.row_of(self.order, index)
        pixels = self._prepare(preprocessing.decoded_image(self._files[row]))
        target = None if self._target is None else self._target(row)
        return splits.sample((pixels,), self._labels[row], self.digest(index), target)

    def target(self, index: int) -> Any:
        """`self[index].expected` without the image."""
        row = splits.row_of(self.order, index)
        return self._labels[row] if self._target is None else self._target(row)

    def digest(self, index: int) -> str:
        """SHA-256 of the file."""
        return data.file_digest(self._files[splits.row_of(self.order, index)])

    def origin(self, index: int) -> str:
        """The file's path, for messages."""
        return str(self._files[splits.row_of(self.order, index)])


def listings(
    root: Path, calibration: str | None, *, suffixes: Sequence[str] = SUFFIXES, kind: str = "images"
) -> tuple[Listing, Listing]:
    """The files of `calibration/` (or another folder) and `evaluation/` below `root`, whose classes have to agree.

    Raises:
        LowerdeckError: a folder is missing, empty or laid out differently.
    """
    evaluation = list_files(root / "evaluation", flat_allowed=False, suffixes=suffixes, kind=kind)
    folder = root / "calibration" if calibration is None else Path(calibration)
    listed = list_files(folder, flat_allowed=True, suffixes=suffixes, kind=kind)
    if listed.classes and listed.classes != evaluation.classes:
        differing = sorted(set(listed.classes) ^ set(evaluation.classes))
        raise LowerdeckError(
            f"{folder} and {evaluation.folder} must have the same class folders; only in one of them: "
            f"{_format_names(differing)}. Make them equal, or put the calibration {kind} into one flat folder."
        )
    return listed, evaluation


def list_files(
    folder: Path, *, flat_allowed: bool, suffixes: Sequence[str] = SUFFIXES, kind: str = "images"
) -> Listing:
    """The files of a folder with one folder per class, in the order of their paths.

    Args:
        folder: the folder
        flat_allowed: whether it may contain files of no class instead
        suffixes: those that are allowed
        kind: what the files are, for messages

    Raises:
        LowerdeckError: the folder is missing, empty or laid out differently.
    """
    one = kind.removesuffix("s")
    if not folder.is_dir():
        raise LowerdeckError(
            f"{one} folder {folder} does not exist; correct dataset.options, or put the {kind} there"
            f"{where_to_get(folder)}"
        )
    entries = sorted(entry for entry in folder.iterdir() if not _is_desktop_metadata(entry.name))
    classes = tuple(entry.name for entry in entries if entry.is_dir())
    loose = [entry for entry in entries if not entry.is_dir()]
    if loose and (classes or not flat_allowed):
        raise LowerdeckError(
            f"{folder} contains files next to or instead of class folders "
            f"({_format_names(entry.name for entry in loose)}); put every {one} into a folder named after its class"
        )
    found = [(path, None) for path in loose] + [
        (path, label) for label, name in enumerate(classes) for path in files_below(folder / name)
    ]
    unsupported = [path.relative_to(folder).as_posix() for path, _ in found if path.suffix.lower() not in suffixes]
    if unsupported:
        raise LowerdeckError(
            f"{folder} contains {len(unsupported)} files that are not {kind} ({_format_names(unsupported)}); allowed "
            f"are {', '.join(suffixes)}. Remove the others."
        )
    empty = [name for label, name in enumerate(classes) if label not in {label for _, label in found}]
    if empty or not found:
        raise LowerdeckError(f"no {kind} in {folder}{f' for {_format_names(empty)}' if empty else ''}; put some there")
    return Listing(
        folder=folder,
        files=tuple(path for path, _ in found),
        labels=tuple(label for _, label in found),
        classes=classes,
    )


def files_below(folder: Path, without: Path | None = None) -> list[Path]:
    """All files in a folder and those below it, sorted by their paths, without hidden ones and those of desktops.

    Links to folders are followed, unless they lead back to a folder that they are in.

    Args:
        folder: the folder
        without: a folder that is left out where it is met

    Raises:
        LowerdeckError: folders are linked in folders that are linked, and so on, too often.
    """
    left_out = without and without.resolve()

    def is_left_out(path: Path) -> bool:
        return _is_desktop_metadata(path.name) or (left_out is not None and path.resolve() == left_out)

    walked = walk(folder, is_left_out)
    return sorted(parent / name for parent, names in walked for name in names if not _is_desktop_metadata(name))


def _is_desktop_metadata(name: str) -> bool:
    return name.startswith(".") or name.lower() in _DESKTOP_METADATA_FILES


def _format_names(names: Iterable[str], num_named: int = 3) -> str:
    listed = list(names)
    more = f" and {len(listed) - num_named} more" if len(listed) > num_named else ""
    return ", ".join(listed[:num_named]) + more
