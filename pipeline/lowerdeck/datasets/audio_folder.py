"""Recordings on disk: `calibration/` and `evaluation/` below one folder, each with one folder per class.

    root/calibration/yes/001.wav      root/evaluation/yes/100.wav
    root/calibration/no/001.wav       root/evaluation/no/100.wav

As in `image_folder`, the class index is the position of the folder's name among the sorted names, and calibration may
be one flat folder. A sample is one recording, cut or filled up to `clip_ms`, as the features of the front end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lowerdeck.datasets import audio, audio_splits, image_folder, splits
from lowerdeck.fingerprints import data


@dataclass(frozen=True, kw_only=True)
class Options(audio.ClipOptions):
    """Keys of `dataset.options`."""

    root: str
    """Folder with `evaluation/` below it, and `calibration/` unless the option `calibration` names another."""
    calibration: str | None = None
    """Another folder with calibration recordings, e.g. the training set; null for `calibration/` below root."""


def target_kind(options: Options) -> str:
    """The class folder."""
    return "class"


check = audio_splits.check_clips


def fingerprint(options: Options) -> str:
    """SHA-256 over every recording of both splits with its path below its split's folder.

    Raises:
        LowerdeckError: a folder is missing, empty or laid out differently.
    """
    return data.files_digest(
        {
            f"{name}/{path.relative_to(listing.folder).as_posix()}": path
            for name, listing in _listings(options).items()
            for path in listing.files
        }
    )


def load(options: Options, input_shapes: Sequence[Sequence[int]], seed: int) -> splits.LoadedDataset:
    """The features of the recordings.

    Args:
        options: see Options
        input_shapes: the model's, e.g. [[1, 1, 49, 10]]
        seed: fixes the order of the samples

    Raises:
        ConfigurationError: options that do not fit the model.
        LowerdeckError: a folder is missing, empty or laid out differently.
    """
    listings = _listings(options)
    clips = {name: audio_splits.Clips(files=one.files, labels=one.labels) for name, one in listings.items()}
    return audio_splits.clip_dataset(options, input_shapes, seed, clips, listings["evaluation"].classes)


def _listings(options: Options) -> Mapping[str, image_folder.Listing]:
    """The recordings of both splits."""
    calibration, evaluation = image_folder.listings(
        Path(options.root), options.calibration, suffixes=audio.SUFFIXES, kind="recordings"
    )
    return {"calibration": calibration, "evaluation": evaluation}
