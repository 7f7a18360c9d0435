"""From a waveform to the features that an audio model takes: log-mel energies or MFCCs, computed by torchaudio.

All parameters are in the configuration, so that they are recorded with a build, and firmware can compute the same.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.datasets import preprocessing

if TYPE_CHECKING:
    import torch

INSTALL = "install it with `pip install 'lowerdeck[audio]'`"


@dataclass(frozen=True, kw_only=True)
class FrontEnd:
    """Parameters of the features. Frame t begins at sample t * hop (`centred: false`), and the last one is complete."""

    features: Literal["log_mel", "mfcc"] = "log_mel"
    """`log_mel`: energies of mel bands; `mfcc`: the first coefficients of their cosine transform."""
    sample_rate_hz: int = 16_000
    """Rate of the recordings; files with another rate are refused."""
    window_ms: float = 30.0
    """Length of the window; the FFT has the next power of two."""
    hop_ms: float = 20.0
    """Time from frame to frame."""
    window: Literal["hann", "hamming"] = "hann"
    """Its shape (periodic)."""
    centred: bool = False
    """Whether frame t is centred at sample t * hop, with zeros before the recording and after it, as in librosa."""
    preemphasis: float = 0.0
    """Coefficient c of y[t] = x[t] - c * x[t - 1] before all else."""
    power: float = 2.0
    """Exponent of the magnitudes: 1 or 2."""
    num_mels: int = 40
    """Number of mel bands."""
    low_hz: float = 20.0
    """Lower end of the lowest band."""
    high_hz: float = 4_000.0
    """Upper end of the highest band."""
    mel_scale: Literal["htk", "slaney"] = "htk"
    """`htk` with bands of height 1, or `slaney` with bands of area 1, as in librosa."""
    num_coefficients: int = 10
    """Number of coefficients of `mfcc`."""
    log: Literal["natural", "decibel"] = "natural"
    """ln(x), or 10 * log10(x)."""
    floor: float = 1e-6
    """Added to energies before the logarithm."""
    mean: float = 0.0
    """Subtracted from the features."""
    std: float = 1.0
    """Divisor after that."""
    clip: list[float] | None = None
    """Lowest and highest value after all else; null for none."""

    def __post_init__(self) -> None:
        problems = [
            (self.sample_rate_hz < 1, f"sample_rate_hz is {self.sample_rate_hz}; it must be above 0"),
            (self.hop_samples < 1, f"hop_ms is {self.hop_ms}, less than one sample; it is in milliseconds"),
            (self.window_samples < 2, f"window_ms is {self.window_ms}, less than two samples; it is in milliseconds"),
            (self.power not in (1.0, 2.0), f"power is {self.power}; it must be 1 or 2"),
            (
                not 0 <= self.low_hz < self.high_hz <= self.sample_rate_hz / 2,
                (
                    f"low_hz is {self.low_hz} and high_hz {self.high_hz}; they must rise, from 0 to half of "
                    f"sample_rate_hz ({self.sample_rate_hz / 2:g})"
                ),
            ),
            (
                self.features == "mfcc" and not 1 <= self.num_coefficients <= self.num_mels,
                f"num_coefficients is {self.num_coefficients}; it must be from 1 to num_mels ({self.num_mels})",
            ),
            (self.num_mels < 1, f"num_mels is {self.num_mels}; it must be above 0"),
            (self.floor <= 0, f"floor is {self.floor}; it must be above 0, so that silence has a logarithm"),
            (
                self.std < preprocessing.LEAST_DIVISOR,
                (
                    f"std is {self.std}; it must be at least {preprocessing.LEAST_DIVISOR:.3g} (float32; 1.0 leaves "
                    "the features as they are)"
                ),
            ),
            (
                self.clip is not None and (len(self.clip) != 2 or self.clip[0] >= self.clip[1]),
                f"clip is {self.clip}; it must be null, or the lowest and the highest value, e.g. [0.0, 1.0]",
            ),
        ]
        if found := [message for wrong, message in problems if wrong]:
            raise ValueError("; ".join(found))

    @property
    def num_features(self) -> int:
        """Number of values of a frame."""
        return self.num_coefficients if self.features == "mfcc" else self.num_mels

    @property
    def window_samples(self) -> int:
        """Length of the window in samples."""
        return round(self.sample_rate_hz * self.window_ms / 1000)

    @property
    def hop_samples(self) -> int:
        """Samples from frame to frame."""
        return round(self.sample_rate_hz * self.hop_ms / 1000)

    def num_samples(self, num_frames: int) -> int:
        """Samples that `num_frames` frames see, without `centred`."""
        return self.hop_samples * (num_frames - 1) + self.window_samples

    def num_frames(self, num_samples: int) -> int:
        """Number of frames of a recording of `num_samples`."""
        if self.centred:
            num_samples += 2 * (self.window_samples // 2)
        return max(0, 1 + (num_samples - self.window_samples) // self.hop_samples)


def compute(waveform: npt.NDArray[np.float32], front_end: FrontEnd) -> npt.NDArray[np.float32]:
    """The features of a recording.

    Args:
        waveform: float32 [n], -1 ... 1.
        front_end: The parameters.

    Returns:
        float32 [frames x features]; see `FrontEnd.num_frames`.

    Raises:
        LowerdeckError: torchaudio is not installed.
    """
    import torch

    filters, window, transform = _constants(front_end)
    fft_samples = _fft_samples(filters)
    signal = torch.from_numpy(np.ascontiguousarray(waveform))
    if front_end.preemphasis:
        signal = torch.cat([signal[:1], signal[1:] - front_end.preemphasis * signal[:-1]])
    if front_end.centred:
        signal = torch.nn.functional.pad(signal, (len(window) // 2, len(window) // 2))
    if len(signal) < len(window):
        return np.zeros((0, front_end.num_features), dtype=np.float32)
    frames = signal.unfold(0, len(window), front_end.hop_samples) * window
    spectrum = torch.fft.rfft(frames, n=fft_samples).abs() ** front_end.power
    values = torch.log(_product(spectrum, filters) + front_end.floor)
    if front_end.log == "decibel":
        values = values * (10 / np.log(10))
    if transform is not None:
        values = _product(values, transform)
    values = (values - front_end.mean) / front_end.std
    if front_end.clip is not None:
        values = values.clamp(*front_end.clip)
    result: npt.NDArray[np.float32] = values.to(torch.float32).numpy()
    return result


@dataclass(frozen=True, kw_only=True)
class Tables:
    """What the features are computed with, for firmware."""

    fft_samples: int
    window: npt.NDArray[np.float32]
    """[samples]."""
    filters: npt.NDArray[np.float32]
    """[bins x mels]."""
    transform: npt.NDArray[np.float32] | None
    """[mels x coefficients] of `mfcc`, else None."""


def tables(front_end: FrontEnd) -> Tables:
    """The numbers with which `compute` works.

    Raises:
        LowerdeckError: torchaudio is not installed.
    """
    filters, window, transform = _constants(front_end)
    return Tables(
        fft_samples=_fft_samples(filters),
        window=window.numpy(),
        filters=filters.numpy(),
        transform=None if transform is None else transform.numpy(),
    )


def _product(frames: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    """Computed in float64 and rounded to float32: the order of sums in float32 depends on the number of frames."""
    return (frames.double() @ matrix.double()).to(frames.dtype)


def _fft_samples(filters: torch.Tensor) -> int:
    return 2 * (len(filters) - 1)


def _constants(front_end: FrontEnd) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    fields = ("sample_rate_hz", "window_ms", "window", "num_mels", "low_hz", "high_hz", "mel_scale")
    num_coefficients = front_end.num_coefficients if front_end.features == "mfcc" else None
    return _cached_constants(num_coefficients, **{name: getattr(front_end, name) for name in fields})


@functools.lru_cache(maxsize=8)
def _cached_constants(
    num_coefficients: int | None, **fields: Any
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Mel filters [bins x mels], window [samples] and, for MFCCs, the cosine transform [mels x coefficients]."""
    import torch

    functional, front_end = _torchaudio_functional(), FrontEnd(**fields)
    num_bins = (1 << (front_end.window_samples - 1).bit_length()) // 2 + 1
    filters = functional.melscale_fbanks(
        num_bins,
        front_end.low_hz,
        front_end.high_hz,
        front_end.num_mels,
        front_end.sample_rate_hz,
        norm="slaney" if front_end.mel_scale == "slaney" else None,
        mel_scale=front_end.mel_scale,
    )
    shape = torch.hann_window if front_end.window == "hann" else torch.hamming_window
    transform = None
    if num_coefficients is not None:
        # As TensorFlow's mfccs_from_log_mel_spectrograms: the first coefficient is scaled as the others are.
        transform = functional.create_dct(num_coefficients, front_end.num_mels, norm=None)
        transform = transform / (2 * front_end.num_mels) ** 0.5
    return filters, shape(front_end.window_samples), transform


def _torchaudio_functional() -> Any:
    try:
        from torchaudio import functional
    except (ImportError, OSError) as error:
        raise LowerdeckError(f"features of audio need torchaudio ({error}); {INSTALL}") from error
    return functional
