"""Parts of sources of sound: options, files to waveforms, and splits of clips, of windows and of streams."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from lowerdeck.contracts.errors import ConfigurationError, LowerdeckError
from lowerdeck.contracts.samples import FrontEndVector, Sample
from lowerdeck.datasets import front_end, preprocessing, splits
from lowerdeck.fingerprints import data
from lowerdeck.formats.regular_files import check_regular

SUFFIXES = (".wav", ".flac", ".ogg")
_FILES_KEPT = 64
"""Recordings whose features stay in memory: windows of one recording follow each other."""

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class AudioOptions(front_end.FrontEnd):
    """Options of every source of sound: those of the features, and how a model takes them."""

    layout: Literal["frames_first", "features_first"] = "frames_first"
    """Order of the model's input: [frames x features] or [features x frames]; dimensions of 1 may stand anywhere."""


@dataclass(frozen=True, kw_only=True)
class ClipOptions(AudioOptions):
    """Options of a source whose samples are clips of one length."""

    clip_ms: float = 1000.0
    """Length of a sample: longer recordings are cut, shorter ones are followed by silence."""
    peak: float | None = None
    """Scales each clip so that its largest amplitude has this value; null leaves it as recorded."""

    @property
    def clip_samples(self) -> int:
        """Length of a clip in samples."""
        return round(self.sample_rate_hz * self.clip_ms / 1000)


def check_input(options: AudioOptions, input_shapes: Sequence[Sequence[int]], num_frames: int) -> tuple[int, ...]:
    """The shape of the model's input, with its batch dimension.

    Raises:
        ConfigurationError: the model does not take so many frames of features.
    """
    shapes = preprocessing.shapes_without_batch(input_shapes)
    wanted = [num_frames, options.num_features]
    if options.layout == "features_first":
        wanted.reverse()
    sizes = [size for size in shapes[0] if size != 1]
    flat = [size for size in (num_frames * options.num_features,) if size != 1]
    if len(shapes) != 1 or sizes not in ([size for size in wanted if size != 1], flat):
        raise ConfigurationError(
            f"model.input_shapes is {[list(shape) for shape in input_shapes]}; the front end gives {num_frames} frames "
            f"of {options.num_features} features, {options.layout} (dataset.options): allowed is "
            f"[[1, {wanted[0]}, {wanted[1]}]] with further dimensions of 1, or "
            f"[[1, {num_frames * options.num_features}]]"
        )
    return (1, *shapes[0])


def waveform(path: Path, sample_rate_hz: int) -> Floats:
    """The samples of a recording, float32 [n], -1 ... 1; of several channels their mean.

    Raises:
        LowerdeckError: it is damaged, has another rate, or soundfile is not installed.
    """
    try:
        import soundfile
    except (ImportError, OSError) as error:
        raise LowerdeckError(f"reading sound needs soundfile ({error}); {front_end.INSTALL}") from error
    try:
        samples, rate = soundfile.read(check_regular(path), dtype="float32", always_2d=True)
    except (soundfile.SoundFileError, OSError, ValueError) as error:
        raise LowerdeckError(f"recording {path} cannot be decoded: {error}; repair or remove it") from error
    if rate != sample_rate_hz:
        raise LowerdeckError(
            f"recording {path} has {rate} samples a second, dataset.options.sample_rate_hz is {sample_rate_hz}; "
            "resample the recordings, or set the option and train the model on that rate"
        )
    mono: Floats = np.ascontiguousarray(samples.mean(axis=1, dtype=np.float32))
    return mono


def clip_features(samples: Floats, options: ClipOptions) -> Floats:
    """The features of a clip of the configured length, float32 [frames x features]."""
    return front_end.compute(clip_of(samples, options), options)


def clip_of(samples: Floats, options: ClipOptions) -> Floats:
    """The beginning of a recording in the configured length and with the configured peak, float32 [clip_samples]."""
    clip = np.zeros(options.clip_samples, dtype=np.float32)
    clip[: len(samples)] = samples[: len(clip)]
    if options.peak is not None and (largest := float(np.abs(clip).max())) > 0:
        clip *= np.float32(options.peak / largest)
    return clip


def vector(signal: Floats, features: Floats, options: AudioOptions) -> FrontEndVector:
    """A test vector for firmware's front end."""
    names = [field.name for field in dataclasses.fields(front_end.FrontEnd)]
    parameters = {name: getattr(options, name) for name in (*names, "layout")}
    return FrontEndVector(parameters=parameters, signal=signal, features=features)


def arranged(features: Floats, options: AudioOptions, shape: tuple[int, ...]) -> Floats:
    """Features [frames x features] as the input of a model, float32 `shape`."""
    ordered = features if options.layout == "frames_first" else features.T
    return np.ascontiguousarray(ordered).reshape(shape)


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


def duration_s(path: Path) -> float:
    """Length of a recording, from its header.

    Raises:
        LowerdeckError: it cannot be read.
    """
    num_samples, rate = length(path)
    return num_samples / rate


def length(path: Path) -> tuple[int, int]:
    """Number of samples of a recording and its rate, from its header.

    Raises:
        LowerdeckError: it cannot be read, or soundfile is not installed.
    """
    try:
        import soundfile
    except (ImportError, OSError) as error:
        raise LowerdeckError(f"reading sound needs soundfile ({error}); {front_end.INSTALL}") from error
    try:
        found = soundfile.info(str(check_regular(path)))
    except (soundfile.SoundFileError, OSError, ValueError) as error:
        raise LowerdeckError(f"recording {path} cannot be decoded: {error}; repair or remove it") from error
    return int(found.frames), int(found.samplerate)
