"""Features of sound: they equal their definitions, and their parameters are checked."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy.fft import dct

from lowerdeck.datasets.front_end import FrontEnd, compute
from tests.datasets.sounds import tone

SIGNAL = (0.3 * np.random.default_rng(0).normal(size=16_000) + tone(440)).astype(np.float32)


def mel_of(hz: npt.NDArray[np.float64] | float) -> npt.NDArray[np.float64]:
    return np.asarray(2595 * np.log10(1 + np.asarray(hz) / 700))


def htk_filters(num_bins: int, low_hz: float, high_hz: float, num_mels: int) -> npt.NDArray[np.float64]:
    """Triangles between points at equal distances in mel, of height 1, over hertz [bins x mels]."""
    points = 700 * (10 ** (np.linspace(mel_of(low_hz), mel_of(high_hz), num_mels + 2) / 2595) - 1)
    bins = np.linspace(0, 8000, num_bins)[:, None]
    rising = (bins - points[:-2]) / (points[1:-1] - points[:-2])
    falling = (points[2:] - bins) / (points[2:] - points[1:-1])
    return np.maximum(0, np.minimum(rising, falling))


def test_mfccs_are_those_of_the_keyword_benchmark() -> None:
    found = compute(SIGNAL, FrontEnd(features="mfcc", power=1.0))
    frames = np.stack([SIGNAL[start : start + 480] for start in range(0, 16_000 - 479, 320)]).astype(np.float64)
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(480) / 480)
    magnitudes = np.abs(np.fft.rfft(frames * window, 512))
    energies = np.log(magnitudes @ htk_filters(257, 20, 4000, 40) + 1e-6)
    expected = dct(energies, type=2, axis=1)[:, :10] / np.sqrt(2 * 40)  # TensorFlow scales all coefficients alike
    assert found.shape == (49, 10)
    assert np.abs(found - expected).max() < 1e-3 * np.abs(expected).max()


def test_log_mel_energies_are_those_of_the_wake_word_benchmark() -> None:
    options = FrontEnd(
        window="hamming", window_ms=64.0, hop_ms=32.0, preemphasis=1 - 2**-5, low_hz=0.0, high_hz=8000.0,
        log="decibel", floor=1e-27, mean=-21.9, std=64.0, clip=[0.0, 1.0],
    )  # fmt: skip
    found = compute(SIGNAL, options)
    signal = np.append(SIGNAL[0], SIGNAL[1:] - (1 - 2**-5) * SIGNAL[:-1]).astype(np.float64)
    frames = np.stack([signal[start : start + 1024] for start in range(0, 16_000 - 1023, 512)])
    window = 0.54 - 0.46 * np.cos(2 * np.pi * np.arange(1024) / 1024)
    power = np.square(np.abs(np.fft.rfft(frames * window))) / 1024
    energies = 10 * np.log10(power @ htk_filters(513, 0, 8000, 40))
    assert found.shape == (30, 40)
    assert np.abs(found - np.clip((energies + 52) / 64, 0, 1)).max() < 1e-3


def test_decibels_of_slaney_bands_are_those_of_the_anomaly_benchmark() -> None:
    """Bands of area 1: a band twice as wide has half the height, so that white noise is level."""
    options = FrontEnd(
        window_ms=64.0, hop_ms=32.0, centred=True, num_mels=128, low_hz=0.0, high_hz=8000.0, mel_scale="slaney",
        log="decibel", floor=1e-12,
    )  # fmt: skip
    noise = np.random.default_rng(1).normal(size=160_000).astype(np.float32)
    found = compute(noise, options)
    assert found.shape == (1 + 160_000 // 512, 128), "librosa's number of frames"
    levels = 10 * np.log10((10 ** (found / 10)).mean(axis=0))
    assert np.ptp(levels[20:]) < 2
    assert options.num_frames(160_000) == len(found)


@pytest.mark.parametrize("num_samples", [0, 100, 479, 480, 799, 800, 16_000])
def test_frames_are_counted_without_computing_them(num_samples: int) -> None:
    for options in (FrontEnd(), FrontEnd(window_ms=64.0, hop_ms=32.0)):
        assert len(compute(SIGNAL[:num_samples], options)) == options.num_frames(num_samples)


def test_a_tone_is_loudest_in_its_band() -> None:
    found = compute(tone(1000).astype(np.float32), FrontEnd(low_hz=0.0, high_hz=8000.0)).mean(axis=0)
    centres = 700 * (10 ** (np.linspace(0, mel_of(8000.0), 42)[1:-1] / 2595) - 1)
    assert abs(centres[found.argmax()] - 1000) < 120


def test_the_number_of_threads_does_not_change_features() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = compute(SIGNAL, FrontEnd())
        torch.set_num_threads(2)
        assert np.array_equal(one, compute(SIGNAL, FrontEnd()))
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hop_ms": 0.0}, "hop_ms is 0.0, less than one sample; it is in milliseconds"),
        ({"hop_ms": 0.02}, "hop_ms is 0.02, less than one sample"),
        ({"window_ms": 0.03}, "window_ms is 0.03, less than two samples"),
        ({"low_hz": 5000.0}, r"low_hz is 5000.0 and high_hz 4000.0; they must rise, from 0 to half of"),
        ({"high_hz": 9000.0}, r"half of sample_rate_hz \(8000\)"),
        ({"features": "mfcc", "num_coefficients": 41}, r"num_coefficients is 41; it must be from 1 to num_mels \(40\)"),
        ({"power": 3.0}, "power is 3.0; it must be 1 or 2"),
        ({"floor": 0.0, "std": 0.0}, "floor is 0.0.*; std is 0.0"),
        ({"std": 1e-45}, r"std is 1e-45; it must be at least 1.18e-38"),
        ({"clip": [1.0, 0.0]}, r"clip is \[1.0, 0.0\]"),
    ],
)
def test_parameters_are_checked(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FrontEnd(**options)  # type: ignore[arg-type]
