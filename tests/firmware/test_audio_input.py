"""The front end in C gives the features of the pipeline, except for rounding."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from lowerdeck.contracts.lowering import ProgramTensor
from lowerdeck.datasets import audio, front_end
from lowerdeck.firmware.audio_input import audio_sources
from lowerdeck.runtime.floats import to_program
from tests.firmware.c_library import address, library, tensor

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
EPSILON = float(np.finfo(np.float32).eps)
KEYWORDS: dict[str, Any] = {"features": "mfcc", "power": 1.0}
WAKE_WORD: dict[str, Any] = {
    "window": "hamming", "window_ms": 64.0, "hop_ms": 32.0, "preemphasis": 1 - 2**-5, "low_hz": 0.0,
    "high_hz": 8000.0, "log": "decibel", "floor": 1e-27, "mean": -21.9, "std": 64.0, "clip": [0.0, 1.0],
}  # fmt: skip
ANOMALY: dict[str, Any] = {
    "window_ms": 64.0, "hop_ms": 32.0, "centred": True, "num_mels": 128, "low_hz": 0.0, "high_hz": 8000.0,
    "mel_scale": "slaney", "log": "decibel", "floor": 1e-12,
}  # fmt: skip
ODD: dict[str, Any] = {"window_ms": 7.3, "hop_ms": 11.1, "preemphasis": 0.9, "centred": True, "num_mels": 9}
"""Samples between two windows that none of them has, and a window of an odd length."""
FRONT_ENDS = {"keywords": KEYWORDS, "wake_word": WAKE_WORD, "anomaly": ANOMALY, "odd": ODD}


def sounds() -> dict[str, Floats]:
    random, time = np.random.default_rng(3), np.arange(16_000) / 16_000
    click = np.zeros(16_000)
    click[7000] = 1.0
    made = {
        "noise": random.uniform(-1, 1, 16_000),
        "quiet noise": random.normal(size=16_000) * 1e-4,
        "silence": np.zeros(16_000),
        "full-scale sine": np.sin(2 * np.pi * 1000 * time),
        "sine off a bin": 0.5 * np.sin(2 * np.pi * 440.7 * time),
        "click": click,
        "short": random.uniform(-1, 1, 1500),
        "shorter than a window": random.uniform(-1, 1, 100),
        "none": np.zeros(0),
    }
    return {name: sound.astype(np.float32) for name, sound in made.items()}


def exact(signal: Floats, options: front_end.FrontEnd) -> tuple[Doubles, Doubles]:
    """The features in double precision, and how far off single precision may be.

    Each bin of a single-precision FFT is off by a few roundings of the length of its frame, whatever is in the bin
    (Higham, "Accuracy and Stability of Numerical Algorithms", section 24.1). That counts where a band has less energy
    than that, beside a loud tone. All other operations round their own results.
    """
    found = front_end.tables(options)
    samples = signal.astype(np.float64)
    if options.preemphasis:
        samples = np.concatenate([samples[:1], samples[1:] - options.preemphasis * samples[:-1]])
    if options.centred:
        samples = np.pad(samples, len(found.window) // 2)
    starts = range(0, len(samples) - len(found.window) + 1, options.hop_samples)
    frames = np.stack([samples[start : start + len(found.window)] for start in starts]) * found.window
    bins, error = np.abs(np.fft.rfft(frames, found.fft_samples)), 4 * EPSILON * np.linalg.norm(frames, axis=1)[:, None]
    middle, low, high = (
        np.log(np.maximum(each, 0) ** options.power @ found.filters.astype(np.float64) + options.floor)
        for each in (bins, bins - error, bins + error)
    )
    factor = 10 / np.log(10) if options.log == "decibel" else 1.0
    off = np.maximum(high - middle, middle - low) + 8 * EPSILON * np.maximum(1, np.abs(middle))
    values, off = middle * factor, off * factor
    if found.transform is not None:
        values, off = values @ found.transform, off @ np.abs(found.transform)
    values = (values - options.mean) / options.std
    return values if options.clip is None else values.clip(*options.clip), off / options.std


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], ctypes.CDLL]:
    """(name of a front end) -> its C functions."""
    known: dict[str, ctypes.CDLL] = {}

    def get(name: str) -> ctypes.CDLL:
        if name not in known:
            known[name] = built({**FRONT_ENDS[name], "layout": "frames_first"}, tmp_path_factory.mktemp(name), "gcc")
        return known[name]

    return get


def built(parameters: Mapping[str, Any], folder: Path, compiler: str = "gcc") -> ctypes.CDLL:
    size = '#include "audio_front_end.h"\nuint32_t state_bytes(void) { return sizeof(lowerdeck_audio); }\n'
    loaded = library(audio_sources(parameters), folder, compiler, size)
    loaded.lowerdeck_audio_take.argtypes = [ctypes.c_void_p, ctypes.c_float, ctypes.c_void_p]
    return loaded


def of_clip(loaded: ctypes.CDLL, signal: Any, num_features: int, max_frames: int = 1000) -> Floats:
    features = np.zeros((max_frames, num_features), np.float32)
    state = ctypes.create_string_buffer(loaded.state_bytes())
    function = loaded.lowerdeck_audio_clip if signal.dtype == np.float32 else loaded.lowerdeck_audio_clip_16_bit
    count = function(state, address(signal), len(signal), address(features), max_frames)
    return features[:count]


@pytest.mark.parametrize("name", FRONT_ENDS)
def test_features_are_those_of_the_pipeline(compiled: Callable[[str], ctypes.CDLL], name: str) -> None:
    loaded, options = compiled(name), front_end.FrontEnd(**FRONT_ENDS[name])
    for sound, signal in sounds().items():
        expected = front_end.compute(signal, options)
        found = of_clip(loaded, signal, options.num_features)
        assert found.shape == expected.shape == (options.num_frames(len(signal)), options.num_features), sound
        if found.size:
            ideal, allowed = exact(signal, options)
            assert (np.abs(found - ideal) <= allowed).all(), sound
            assert (np.abs(expected - ideal) <= allowed).all(), sound  # the pipeline's own
            if "noise" in sound or sound in ("silence", "short"):
                assert np.abs(found - expected).max() <= 2e-6 * max(1, np.abs(expected).max()), sound


@pytest.mark.parametrize("name", FRONT_ENDS)
def test_frame_by_frame_is_the_whole_clip(compiled: Callable[[str], ctypes.CDLL], name: str) -> None:
    loaded, options = compiled(name), front_end.FrontEnd(**FRONT_ENDS[name])
    signal = sounds()["noise"][:5000]
    whole, state = of_clip(loaded, signal, options.num_features), ctypes.create_string_buffer(loaded.state_bytes())
    one, frames = np.zeros(options.num_features, np.float32), []
    loaded.lowerdeck_audio_start(state)
    for number, sample in enumerate(signal):
        if loaded.lowerdeck_audio_take(state, sample, address(one)):
            frames.append(one.copy())
            if not options.centred:  # a frame is there with its last sample
                assert number + 1 == options.num_samples(len(frames))
    assert np.array_equal(frames, whole[: len(frames)])
    assert len(frames) == (options.num_frames(len(signal)) if not options.centred else len(frames)) > 1


def test_integers_of_16_bits_and_few_frames(compiled: Callable[[str], ctypes.CDLL]) -> None:
    loaded, integers = compiled("keywords"), np.random.default_rng(0).integers(-(2**15), 2**15, 4000, dtype=np.int16)
    floats = (integers / 2**15).astype(np.float32)
    assert np.array_equal(of_clip(loaded, integers, 10), of_clip(loaded, floats, 10))
    assert np.array_equal(of_clip(loaded, floats, 10, max_frames=3), of_clip(loaded, floats, 10)[:3])


@pytest.mark.parametrize("num_samples", [3000, 9000])
def test_clips_get_the_length_and_the_peak_of_the_dataset(tmp_path: Path, num_samples: int) -> None:
    options = audio.ClipOptions(**KEYWORDS, clip_ms=400.0, peak=0.8)
    signal = sounds()["noise"][:num_samples] * np.float32(0.1)
    expected = audio.clip_features(signal, options)
    loaded = built(audio.vector(signal, expected, options).parameters, tmp_path, "clang")
    found = of_clip(loaded, signal, options.num_features)
    assert found.shape == expected.shape == (19, 10)
    ideal, allowed = exact(audio.clip_of(signal, options), options)
    assert (np.abs(found - ideal) <= allowed).all()
    is_heard = np.arange(19) * options.hop_samples < num_samples  # the others are the sum of 40 logarithms of the floor
    assert np.abs(found - expected)[is_heard].max() < 2e-5


@pytest.mark.parametrize("layout", ["frames_first", "features_first"])
def test_features_become_the_input(tmp_path: Path, layout: Any) -> None:
    """In every layout and dimension order, of floats and of integers."""
    options = audio.AudioOptions(**KEYWORDS, layout=layout)
    features = np.random.default_rng(0).normal(size=(6, 10)).astype(np.float32) * 40
    loaded = built(audio.vector(np.zeros(0, np.float32), features, options).parameters, tmp_path)
    frames, values = (6, 10) if layout == "frames_first" else (10, 6)
    shapes = ((1, 1, frames, values), (0, 2, 3, 1)), ((1, 60), (0, 1)), ((1, frames, 1, values), (3, 2, 1, 0))
    for dtype, (shape, order) in itertools.product(("float32", "int8", "uint8", "int16"), shapes):
        scale, zero_point = (0.0, 0) if dtype == "float32" else (0.37, 3)
        described = tensor(shape, dtype, scale, zero_point, order)
        program = ProgramTensor(
            name="x", dtype=dtype, shape=shape, dim_order=order, scale=scale or None, zero_point=zero_point,
            quant_min=described.least, quant_max=described.most,
        )  # fmt: skip
        arranged = torch.from_numpy(audio.arranged(features, options, shape))
        expected = to_program(arranged, program).permute(order).contiguous().numpy()
        made = np.zeros(expected.shape, expected.dtype)
        assert loaded.lowerdeck_audio_store(ctypes.byref(described), address(features), address(made)) == 0
        assert np.array_equal(made, expected), (dtype, shape)
    assert loaded.lowerdeck_audio_store(ctypes.byref(tensor((1, 61))), address(features), address(made)) == -1


def test_quantized_features_are_the_same_integers(compiled: Callable[[str], ctypes.CDLL]) -> None:
    """All but those within the tolerance from the middle between two integers."""
    options, scale = front_end.FrontEnd(**KEYWORDS), 0.02
    signal = sounds()["noise"]
    ideal, allowed = exact(signal, options)
    integers = (
        np.rint(each / scale)
        for each in (front_end.compute(signal, options), of_clip(compiled("keywords"), signal, 10))
    )
    expected, found = integers
    decided = np.abs(np.abs(ideal / scale % 1) - 0.5) > allowed / scale
    assert decided.mean() > 0.99
    assert np.array_equal(found[decided], expected[decided])
