"""Visual Wake Words: is there a person? From MLPerf Tiny's folders of 96x96 images, or from COCO itself.

    root/person/COCO_val2014_000000000042.jpg   root/non_person/...            (`annotations: null`)
    root/COCO_val2014_000000000042.jpg ... and instances_val2014.json          (`annotations` names the JSON)

The folders have no splits: of each class the first `calibration_share` of the files, by name, calibrates, as Keras'
validation_split divides them. With annotations, an image shows a person where one covers more than `least_area` of it;
images are split alike. Source: Chowdhery et al., "Visual Wake Words Dataset", arXiv:1906.05721; mlcommons/tiny,
benchmark/training/visual_wake_words.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.datasets import image_folder, preprocessing, splits
from lowerdeck.fingerprints import data
from lowerdeck.formats.regular_files import check_regular

CLASSES = ("non_person", "person")
NUM_NAMED = 3

Listed = dict[str, list[tuple[Path, int]]]
"""Split -> images and labels."""


@dataclass(frozen=True, kw_only=True)
class Options(preprocessing.ImageOptions):
    """Keys of `dataset.options`."""

    root: str
    """Folder with person/ and non_person/, e.g. vw_coco2014_96, or with COCO's images."""
    annotations: str | None = None
    """Path of COCO's instances_*.json; null where root has a folder for each class."""
    least_area: float = 0.005
    """Share of the image that a person has to exceed, where annotations are given."""
    calibration_share: float = 0.1
    """Share of the images of each class that calibrate and are not evaluated."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.calibration_share < 1 or not 0 <= self.least_area < 1:
            raise ValueError(
                f"calibration_share is {self.calibration_share} and least_area {self.least_area}; they must be between "
                "0 and 1"
            )


check = preprocessing.check


def target_kind(options: Options) -> str:
    """1 for a person, else 0."""
    return "class"


def fingerprint(options: Options) -> str:
    """SHA-256 over all images, and the annotations.

    Raises:
        LowerdeckError: a folder or file is missing or damaged.
    """
    root = Path(options.root)
    members = [path for split in _listed(options).values() for path, _ in split]
    preprocessing.check_images(root, members)
    files = {path.relative_to(root).as_posix(): path for path in members}
    return data.files_digest(files | ({"": Path(options.annotations)} if options.annotations is not None else {}))


def load(options: Options, input_shapes: Sequence[Sequence[int]], seed: int) -> splits.LoadedDataset:
    """The images, resized and cropped to the model's input.

    Args:
        options: see Options
        input_shapes: the model's, [[1, 3, 96, 96]]
        seed: fixes the order of the samples

    Raises:
        ConfigurationError: options that do not fit the model.
        LowerdeckError: a folder or file is missing or damaged.
    """
    prepare = splits.image_preparation(options, input_shapes)
    loaded: dict[str, Any] = {
        name: image_folder.ImageFileSplit([path for path, _ in listed], [label for _, label in listed], prepare, seed)
        for name, listed in _listed(options).items()
    }
    described = preprocessing.description(options, preprocessing.image_shape(input_shapes))
    return splits.LoadedDataset(num_classes=2, class_names=CLASSES, preprocessing=described, **loaded)


def _listed(options: Options) -> Listed:
    of_classes = _of_folders(options) if options.annotations is None else _of_annotations(options, options.annotations)
    listed: Listed = {"calibration": [], "evaluation": []}
    for label, files in enumerate(of_classes):
        if len(files) < 2:
            raise LowerdeckError(
                f"{options.root} has {len(files)} images of the class {CLASSES[label]}; at least 2 are needed, one for "
                "calibration and one for evaluation"
            )
        count = min(max(1, int(len(files) * options.calibration_share)), len(files) - 1)
        listed["calibration"] += [(path, label) for path in files[:count]]
        listed["evaluation"] += [(path, label) for path in files[count:]]
    return listed


def _of_folders(options: Options) -> list[list[Path]]:
    found = image_folder.list_files(Path(options.root), flat_allowed=False)
    if found.classes != CLASSES:
        raise LowerdeckError(
            f"{options.root} has the folders {', '.join(found.classes)}; it must have {' and '.join(CLASSES)}, or name "
            "COCO's instances_*.json as dataset.options.annotations"
        )
    return [[path for path, given in zip(found.files, found.labels, strict=True) if given == label] for label in (0, 1)]


def _of_annotations(options: Options, annotations: str) -> list[list[Path]]:
    root, of_classes = Path(options.root), _labelled(Path(annotations), options.least_area)
    files = [sorted(root / name for name in names) for names in of_classes]
    if missing := [path.name for path in (*files[0], *files[1]) if not path.is_file()]:
        raise LowerdeckError(
            f"{len(missing)} images of {annotations} are not in {root} ({', '.join(missing[:NUM_NAMED])}); "
            "dataset.options.root must be the folder of COCO's images"
        )
    return files


def _labelled(path: Path, least_area: float) -> list[list[str]]:
    """Names of the images without and with a person."""
    try:
        content = json.loads(check_regular(path).read_text(encoding="utf-8"))
        person = next(entry["id"] for entry in content["categories"] if entry["name"] == "person")
        images = {entry["id"]: entry for entry in content["images"]}
        shares = dict.fromkeys(images, 0.0)
        for found in content["annotations"]:
            image = images[found["image_id"]]
            if found["category_id"] == person:
                share = found["area"] / (image["width"] * image["height"])
                shares[found["image_id"]] = max(share, shares[found["image_id"]])
    except OSError as error:
        raise LowerdeckError(f"{path} cannot be read: {error}; correct dataset.options.annotations") from error
    except (ValueError, KeyError, TypeError, StopIteration, RecursionError) as error:
        raise LowerdeckError(
            f"{path} is not COCO's instances_*.json with a category `person` ({type(error).__name__}: {error})"
        ) from error
    return [
        [images[number]["file_name"] for number, share in shares.items() if (share > least_area) is is_person]
        for is_person in (False, True)
    ]
