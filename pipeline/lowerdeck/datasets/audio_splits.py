"""Splits of recordings: one sample for each clip, several for each recording, or one for each stream."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.contracts.samples import Sample
from lowerdeck.datasets import front_end, splits
from lowerdeck.datasets.audio import (
    AudioOptions,
    ClipOptions,
    Floats,
    arranged,
    check_input,
    clip_of,
    vector,
    waveform,
)
from lowerdeck.fingerprints import data

_FILES_KEPT = 64
"""Recordings whose features stay in memory: windows of one recording follow each other."""


@dataclass(frozen=True, kw_only=True)
class ClipSplit:
    """One sample for each recording, or for each given part of one."""

    files: Sequence[Path]
    labels: Sequence[int | None]
    options: ClipOptions
    shape: tuple[int, ...]
    """The model's input."""
    order: Sequence[int]
    """Index of a sample -> row."""
    starts: Sequence[int] | None = None
    """For each row, the first sample of its clip; None for 0."""

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, index: int) -> Sample:
        row = splits.row_of(self.order, index)
        start = 0 if self.starts is None else self.starts[row]
        clip = clip_of(waveform(self.files[row], self.options.sample_rate_hz)[start:], self.options)
        features = front_end.compute(clip, self.options)
        inputs = arranged(features, self.options, self.shape)
        sample = splits.sample((inputs,), self.labels[row], self.digest(index))
        return dataclasses.replace(sample, front_end=vector(clip, features, self.options))

    def digest(self, index: int) -> str:
        """SHA-256 of the file, and of the place of the clip in it where it has several."""
        row = splits.row_of(self.order, index)
        return _digest(self.files[row], None if self.starts is None else self.starts[row])

    def origin(self, index: int) -> str:
        """The file, for messages."""
        return str(self.files[splits.row_of(self.order, index)])


@dataclass(frozen=True, kw_only=True)
class Clips:
    """The clips of one split: where each is, and its class."""

    files: Sequence[Path]
    labels: Sequence[int | None]
    starts: Sequence[int] | None = None
    """See ClipSplit."""


def check_clips(options: ClipOptions, input_shapes: Sequence[Sequence[int]]) -> None:
    """Raise ConfigurationError unless the model takes the features of a clip."""
    check_input(options, input_shapes, options.num_frames(options.clip_samples))


def clip_dataset(
    options: ClipOptions,
    input_shapes: Sequence[Sequence[int]],
    seed: int,
    clips: Mapping[str, Clips],
    class_names: Sequence[str],
) -> splits.LoadedDataset:
    """The features of the clips of `calibration` and `evaluation`, in an order that the seed fixes.

    Raises:
        ConfigurationError: the model does not take the features of a clip.
    """
    shape = check_input(options, input_shapes, options.num_frames(options.clip_samples))
    loaded = {
        name: ClipSplit(
            files=split.files,
            labels=split.labels,
            starts=split.starts,
            options=options,
            shape=shape,
            order=splits.seeded_order(len(split.files), seed),
        )
        for name, split in clips.items()
    }
    return splits.LoadedDataset(
        num_classes=len(class_names),
        calibration=loaded["calibration"],
        evaluation=loaded["evaluation"],
        class_names=tuple(class_names),
    )


class WindowSplit:
    """Several samples of each recording: `num_frames` frames at a time. Targets name the recording as `group`."""

    def __init__(
        self,
        files: Sequence[Path],
        labels: Sequence[int],
        options: AudioOptions,
        shape: tuple[int, ...],
        windows: Sequence[tuple[int, int]],
        num_frames: int,
    ) -> None:
        """
        Args:
            files: the recordings
            labels: one for each recording
            options: the features
            shape: the model's input
            windows: row of the recording and first frame of every sample, in order
            num_frames: frames of a sample
        """
        self._files, self._labels, self._options = files, labels, options
        self._shape, self._windows, self._num_frames = shape, windows, num_frames
        self.order = windows
        self._features = functools.lru_cache(maxsize=_FILES_KEPT)(self._computed)

    def __len__(self) -> int:
        return len(self._windows)

    def __getitem__(self, index: int) -> Sample:
        row, start = self._window(index)
        samples, features = self._features(row)
        values = features[start : start + self._num_frames]
        if len(values) < self._num_frames:
            raise LowerdeckError(
                f"recording {self._files[row]} has {start + len(values)} frames, and a sample begins at frame {start} "
                f"and needs {self._num_frames}; remove recordings that are shorter than the others"
            )
        inputs = arranged(values, self._options, self._shape)
        target = {"label": self._labels[row], "group": row}
        sample = splits.sample((inputs,), self._labels[row], self.digest(index), target)
        options = dataclasses.replace(self._options, centred=False)  # the signal has what centring adds
        if options.preemphasis:  # of the first sample it needs the one before
            return sample
        first, num_samples = start * options.hop_samples, options.num_samples(self._num_frames)
        signal = samples[first : first + num_samples]
        return dataclasses.replace(sample, front_end=vector(signal, values, options))

    def digest(self, index: int) -> str:
        """SHA-256 of the file and the place in it."""
        row, start = self._window(index)
        return _digest(self._files[row], start)

    def origin(self, index: int) -> str:
        """The file and the frame, for messages."""
        row, start = self._window(index)
        return f"{self._files[row]}, frame {start}"

    def _window(self, index: int) -> tuple[int, int]:
        if not 0 <= index < len(self._windows):
            raise IndexError(f"sample {index} of a split of {len(self._windows)}")
        return self._windows[index]

    def _computed(self, row: int) -> tuple[Floats, Floats]:
        """A recording, with what `centred` adds to it, and its features."""
        samples = waveform(self._files[row], self._options.sample_rate_hz)
        features = front_end.compute(samples, self._options)
        return np.pad(samples, self._options.window_samples // 2) if self._options.centred else samples, features


@dataclass(frozen=True, kw_only=True)
class Stream:
    """A part of a recording in which events happen."""

    file: Path
    start_s: float
    end_s: float | None
    """None for the end of the recording."""
    events_s: tuple[tuple[float, float], ...]
    """Begin and end of every event, from the start of the recording."""
    uncounted_s: tuple[tuple[float, float], ...] = ()
    """Those of the recording's events that are not wholly in this part."""


@dataclass(frozen=True, kw_only=True)
class StreamSplit:
    """One sample for each stream: the model is called for every frame, and keeps its state in between."""

    streams: Sequence[Stream]
    options: AudioOptions
    shape: tuple[int, ...]
    """The model's input."""
    num_frames: int
    """Frames of a call; the next call begins one frame later."""
    order: Sequence[int]
    """Index of a sample -> row."""

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, index: int) -> Sample:
        stream, rate = self.streams[splits.row_of(self.order, index)], self.options.sample_rate_hz
        end = None if stream.end_s is None else round(stream.end_s * rate)
        samples = waveform(stream.file, rate)[round(stream.start_s * rate) : end]
        values = front_end.compute(samples, self.options)
        calls = [
            (arranged(values[start : start + self.num_frames], self.options, self.shape),)
            for start in range(len(values) - self.num_frames + 1)
        ]
        if not calls:
            raise LowerdeckError(f"{self.origin(index)} has {len(values)} frames, a call takes {self.num_frames}")
        last_sample = self.options.num_samples(self.num_frames)
        target: Mapping[str, Any] = {
            "events_s": np.array(stream.events_s, dtype=np.float64).reshape(-1, 2) - stream.start_s,
            "uncounted_s": np.array(stream.uncounted_s, dtype=np.float64).reshape(-1, 2) - stream.start_s,
            "first_call_s": last_sample / rate,
            "call_s": self.options.hop_samples / rate,
        }
        sample = splits.sample(calls[0], None, self.digest(index), target, calls[1:])
        first = vector(samples[:last_sample], values[: self.num_frames], self.options)
        return dataclasses.replace(sample, front_end=first)

    def digest(self, index: int) -> str:
        """SHA-256 of the file and the place in it."""
        stream = self.streams[splits.row_of(self.order, index)]
        return _digest(stream.file, None if stream.end_s is None and not stream.start_s else stream.start_s)

    def origin(self, index: int) -> str:
        """The file and the time, for messages."""
        stream = self.streams[splits.row_of(self.order, index)]
        return f"{stream.file} from {stream.start_s:g} s"


@functools.cache
def _file_digest(path: Path, size: int, modified_ns: int) -> str:
    return data.file_digest(path)


def _digest(path: Path, part: float | None) -> str:
    status = path.stat()
    digest = _file_digest(path, status.st_size, status.st_mtime_ns)
    return digest if part is None else hashlib.sha256(f"{digest}:{part}".encode()).hexdigest()
