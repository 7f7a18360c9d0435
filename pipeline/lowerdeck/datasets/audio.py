"""Parts of sources of sound: their options, files to waveforms, and features to what a model takes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from lowerdeck.contracts.errors import ConfigurationError, LowerdeckError
from lowerdeck.contracts.samples import FrontEndVector
from lowerdeck.datasets import front_end, preprocessing
from lowerdeck.formats.regular_files import check_regular

SUFFIXES = (".wav", ".flac", ".ogg")
Floats = npt.NDArray[np.float32]
_STREAMED_BYTES = 0x7FFF_0000
"""Programs that write to a pipe declare at least so many bytes of data, or none."""
_BYTE_ORDERS: Mapping[bytes, Literal["little", "big"]] = {b"RIFF": "little", b"RIFX": "big", b"RF64": "little"}


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

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.clip_samples < 1:
            raise ValueError(f"clip_ms is {self.clip_ms}, less than one sample; it is in milliseconds")
        if self.peak is not None and self.peak <= 0:
            raise ValueError(f"peak is {self.peak}; it must be above 0, or null to leave clips as recorded")

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
        LowerdeckError: it is damaged, cut off or empty, has another rate or values that are not finite, or soundfile is
            not installed.
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
    if not len(samples) or _is_cut_off(path):
        fault = "is cut off: its header declares more samples" if len(samples) else "has no samples"
        raise LowerdeckError(f"recording {path} {fault}; repair or remove it: what is missing would count as silence")
    if count := int((~np.isfinite(samples)).sum()):
        raise LowerdeckError(f"recording {path} has {count} values that are NaN or infinite; repair or remove it")
    mono: Floats = np.ascontiguousarray(samples.mean(axis=1, dtype=np.float32))
    return mono


def _is_cut_off(path: Path) -> bool:
    """Whether a .wav file has less data than it declares, of which libsndfile reads what there is."""
    with path.open("rb") as file:
        start, long_size = file.read(12), 0
        order = _BYTE_ORDERS.get(start[:4]) if start[8:] == b"WAVE" else None
        while order and len(header := file.read(8)) == 8:
            name, size, place = header[:4], int.from_bytes(header[4:], order), file.tell()
            if name == b"ds64":  # of RF64: the sizes of the file and of its data, in 64 bits
                long_size = int.from_bytes(file.read(16)[8:], order)
            elif name == b"data":
                is_streamed = size >= _STREAMED_BYTES and not long_size
                return not is_streamed and place + (long_size or size) > path.stat().st_size
            file.seek(place + size + size % 2)
    return False


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
    names += ["layout", *(("clip_ms", "peak") if isinstance(options, ClipOptions) else ())]
    parameters = {name: getattr(options, name) for name in names}
    return FrontEndVector(parameters=parameters, signal=signal, features=features)


def arranged(features: Floats, options: AudioOptions, shape: tuple[int, ...]) -> Floats:
    """Features [frames x features] as the input of a model, float32 `shape`."""
    ordered = features if options.layout == "frames_first" else features.T
    return np.ascontiguousarray(ordered).reshape(shape)


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
