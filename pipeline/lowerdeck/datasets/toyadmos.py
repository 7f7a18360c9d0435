"""ToyADMOS car as published for DCASE 2020 Task 2 and MLPerf Tiny: normal recordings to train, both kinds to test.

    root/train/normal_id_01_00000000.wav    root/test/normal_id_01_00000000.wav    root/test/anomaly_id_01_00000000.wav

A sample is `num_frames` consecutive frames of a recording, and the recording is its group: the task `anomaly` averages
the scores of a recording. Source: Koizumi et al., "ToyADMOS: A Dataset of Miniature-Machine Operating Sounds", WASPAA
2019; the frames are those of mlcommons/tiny (training of anomaly detection).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.datasets import audio, audio_splits, splits
from lowerdeck.fingerprints import data
from lowerdeck.registry.bundled_data import where_to_get

PREFIXES = ("normal", "anomaly")
"""Of file names; the position is the label."""


@dataclass(frozen=True, kw_only=True)
class Options(audio.AudioOptions):
    """Keys of `dataset.options`."""

    root: str
    """Folder of one machine, e.g. dev_data/ToyCar, with `train/` and `test/` below it."""
    machine_id: str | None = None
    """Evaluates only one machine, e.g. id_01; null for all."""
    num_frames_per_sample: int = 5
    """Frames of a sample."""
    hop_frames: int = 1
    """Frames from sample to sample."""
    first_frame: int = 0
    """First frame of a recording that is used."""
    last_frame: int | None = None
    """Frame after the last one that is used; null for all."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.num_frames_per_sample, self.hop_frames) < 1 or self.first_frame < 0:
            raise ValueError(
                f"num_frames_per_sample is {self.num_frames_per_sample}, hop_frames {self.hop_frames}, first_frame "
                f"{self.first_frame}; they must be at least 1, 1 and 0"
            )


def target_kind(options: Options) -> str:
    """Normal or anomalous."""
    return "class"


def check(options: Options, input_shapes: Sequence[Sequence[int]]) -> None:
    """Raise ConfigurationError unless the model takes the features of a sample."""
    audio.check_input(options, input_shapes, options.num_frames_per_sample)


def fingerprint(options: Options) -> str:
    """SHA-256 over all recordings.

    Raises:
        LowerdeckError: a folder is missing, empty or has other files.
    """
    root = Path(options.root)
    files = [*_recordings(options, "train"), *_recordings(options, "test")]
    return data.files_digest({path.relative_to(root).as_posix(): path for path in files})


def load(options: Options, input_shapes: Sequence[Sequence[int]], seed: int) -> splits.LoadedDataset:
    """The samples of all recordings; evaluation has those of a recording one after the other.

    Args:
        options: see Options
        input_shapes: the model's, e.g. [[1, 640]]
        seed: fixes the order of the recordings, and of calibration samples

    Raises:
        ConfigurationError: options that do not fit the model.
        LowerdeckError: a folder is missing, empty or has other files.
    """
    shape = audio.check_input(options, input_shapes, options.num_frames_per_sample)

    def split(folder: Literal["train", "test"]) -> audio_splits.WindowSplit:
        files = _recordings(options, folder)
        order = splits.seeded_order(len(files), seed)
        windows = [(row, start) for row in order for start in _starts(options, files[row])]
        if folder == "train":  # the first calibration samples are those of many recordings
            windows.sort(key=lambda window: hashlib.sha256(f"{seed}:{window}".encode()).digest())
        labels = [PREFIXES.index(path.name.partition("_")[0]) for path in files]
        return audio_splits.WindowSplit(files, labels, options, shape, windows, options.num_frames_per_sample)

    return splits.LoadedDataset(num_classes=2, calibration=split("train"), evaluation=split("test"))


def _starts(options: Options, path: Path) -> range:
    """First frames of the samples of a recording."""
    num_frames = options.num_frames(audio.length(path)[0])
    end = num_frames if options.last_frame is None else min(num_frames, options.last_frame)
    starts = range(options.first_frame, end - options.num_frames_per_sample + 1, options.hop_frames)
    if not starts:
        raise LowerdeckError(
            f"recording {path} has {num_frames} frames, and samples are {options.num_frames_per_sample} frames from "
            f"frame {options.first_frame} to {end}; correct dataset.options, or remove the recording"
        )
    return starts


def _recordings(options: Options, folder: str) -> list[Path]:
    place = Path(options.root) / folder
    if not place.is_dir():
        raise LowerdeckError(
            f"{place} does not exist; dataset.options.root must be the folder of a machine with train/ and test/, e.g. "
            f"dev_data/ToyCar{where_to_get(place)}"
        )
    found = sorted(path for path in place.iterdir() if path.suffix in audio.SUFFIXES)
    if strange := [path.name for path in found if path.name.partition("_")[0] not in PREFIXES]:
        raise LowerdeckError(
            f"{place} has {len(strange)} recordings whose names begin neither with normal_ nor with anomaly_, e.g. "
            f"{strange[0]}; name them as the data set does: anomaly_id_01_00000000.wav"
        )
    if options.machine_id is not None:
        found = [path for path in found if f"_{options.machine_id}_" in path.name]
    if not found:
        raise LowerdeckError(
            f"{place} has no recordings{f' of {options.machine_id}' if options.machine_id else ''} "
            f"({', '.join(audio.SUFFIXES)}); correct dataset.options"
        )
    return found
