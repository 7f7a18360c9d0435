"""Writes scikit-learn's handwritten digits as 32x32 images, split for training, calibration and evaluation.

    python -m data.prepare_digits        (what the stage `prepare` of data/dvc.yaml runs)

The digits are 1,797 real grey images of 8x8 pixels with values 0 ... 16 that come with scikit-learn. All arithmetic is
on integers and every choice follows from a seed and from SHA-256, so the files are the same bytes on every machine.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save

FOLDER = Path("data/prepared/digits")
SEED = 20240229
NUM_EVALUATION = 360
NUM_CALIBRATION = 128
NUM_CLASSES = 10
MAGNIFICATION = 4  # 8x8 -> 32x32, the input of ResNet-8
SOURCE = "scikit-learn load_digits (UCI, Optical Recognition of Handwritten Digits, test part)"
SOURCE_SHA256 = "87ff0c9e40dc7e2c0e34e7257799c2e3f3aec1a016363bb11cad869ec428a826"
"""Of the 8x8 pixels as uint8 followed by the labels as uint8: notices a scikit-learn with other data."""
_OTHER_DATA = "this scikit-learn bundles other data. Install the version in requirements.lock."


def main() -> None:
    """Write data/prepared/digits."""
    prepare(FOLDER)


def prepare(folder: Path) -> None:
    """Write `{train,calibration,evaluation}.safetensors` and `manifest.json` into `folder`.

    Each split holds `images`, uint8 [n x 32 x 32], and `labels`, int64 [n].

    Raises:
        ValueError: scikit-learn's data is not what this script was written for.
    """
    pixels, labels = read_source()
    images = enlarge(pixels)
    digests = [hashlib.sha256(image.tobytes()).hexdigest() for image in images]
    rows_by_split = split_rows(digests, labels)
    folder.mkdir(parents=True, exist_ok=True)
    described = {
        name: write_split(folder / f"{name}.safetensors", images[rows], labels[rows])
        for name, rows in rows_by_split.items()
    }
    manifest = {
        "source": SOURCE,
        "source_sha256": SOURCE_SHA256,
        "seed": SEED,
        "class_names": [str(digit) for digit in range(NUM_CLASSES)],
        "image_shape": list(images.shape[1:]),
        "dropped_duplicates": len(labels) - sum(len(rows) for rows in rows_by_split.values()),
        "splits": described,
    }
    write_atomically(folder / "manifest.json", (json.dumps(manifest, indent=2) + "\n").encode())


def read_source() -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Pixels 0 ... 16, uint8 [n x 8 x 8], and labels, int64 [n].

    Raises:
        ValueError: they differ from those this script was written for.
    """
    # Importing scikit-learn, whose `load_digits` reads this file, takes five times as long as all that is done here.
    scikit_learn = find_spec("sklearn")
    if scikit_learn is None or scikit_learn.origin is None:
        raise ModuleNotFoundError("No module named 'sklearn'", name="sklearn")
    file = Path(scikit_learn.origin).parent / "datasets" / "data" / "digits.csv.gz"
    if not file.is_file():
        raise ValueError(f"{file} does not exist: {_OTHER_DATA}")
    with gzip.open(file, "rt", encoding="utf-8") as rows:
        table = np.loadtxt(rows, delimiter=",")
    pixels, labels = table[:, :-1].reshape(-1, 8, 8).astype(np.uint8), table[:, -1].astype(np.int64)
    digest = hashlib.sha256(pixels.tobytes() + labels.astype(np.uint8).tobytes()).hexdigest()
    if digest != SOURCE_SHA256:
        raise ValueError(f"scikit-learn's digits have SHA-256 {digest}, expected {SOURCE_SHA256}: {_OTHER_DATA}")
    return pixels, labels


def enlarge(pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Values 0 ... 16 to 0 ... 255 (rounded), and every pixel to a square of 4x4.

    Args:
        pixels: uint8 [n x 8 x 8]

    Returns:
        uint8 [n x 32 x 32]
    """
    scaled = ((pixels.astype(np.int64) * 255 + 8) // 16).astype(np.uint8)
    return scaled.repeat(MAGNIFICATION, axis=1).repeat(MAGNIFICATION, axis=2)


def split_rows(digests: list[str], labels: npt.NDArray[np.int64]) -> dict[str, list[int]]:
    """Which rows of the source go into which split, in the order they are stored.

    Classes keep their shares in every split. Of images with the same pixels only the first is used, so none can stand
    in two splits (today's source has no such images; the manifest counts them).
    """
    distinct = list({digest: row for row, digest in reversed(list(enumerate(digests)))}.values())
    # Sorting by a hash of seed and content mixes the samples alike on all machines.
    mixed = sorted(distinct, key=lambda row: hashlib.sha256(f"{SEED}:{digests[row]}".encode()).digest())
    counts = np.bincount(labels[mixed], minlength=NUM_CLASSES)
    evaluation, calibration = quotas(counts, NUM_EVALUATION), quotas(counts, NUM_CALIBRATION)
    splits: dict[str, list[int]] = {"train": [], "calibration": [], "evaluation": []}
    for row in mixed:
        label = int(labels[row])
        if evaluation[label]:
            evaluation[label] -= 1
            splits["evaluation"].append(row)
        elif calibration[label]:
            calibration[label] -= 1
            splits["calibration"].append(row)
        else:
            splits["train"].append(row)
    return splits


def quotas(counts: npt.NDArray[np.int64], total: int) -> list[int]:
    """Shares of `total` in proportion to `counts`, as integers: the largest remainders are rounded up."""
    shares = [int(count) * total // int(counts.sum()) for count in counts]
    remainders = [int(count) * total % int(counts.sum()) for count in counts]
    by_remainder = sorted(range(len(shares)), key=lambda label: (-remainders[label], label))
    for label in by_remainder[: total - sum(shares)]:
        shares[label] += 1
    return shares


def write_split(
    path: Path, images: npt.NDArray[np.uint8], labels: npt.NDArray[np.int64]
) -> Mapping[str, int | str | list[int]]:
    """Write one split, and return what the manifest says about it."""
    data = save({"images": np.ascontiguousarray(images), "labels": np.ascontiguousarray(labels)})
    write_atomically(path, data)
    return {
        "num_samples": len(labels),
        "num_samples_per_class": np.bincount(labels, minlength=NUM_CLASSES).tolist(),
        "sha256": hashlib.sha256(data).hexdigest(),
    }


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that an interrupted run leaves the old one or none, never a part of the new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def run() -> int:
    """`main`, ended as the pipeline's stages end: exit status 1 after a message, e.g. about a full disk."""
    try:
        main()
    except Exception as error:
        from lowerdeck.execution.failures import failure_message

        print(f"\nprepare: {failure_message(error, 'prepare')}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(run())
