"""Writes recordings as data sets have them: PCM in .wav files, 16 bits, one channel."""

from __future__ import annotations

import wave
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from lowerdeck.contracts.samples import Split

RATE_HZ = 16_000


def write_wav(path: Path, samples: npt.NDArray[Any], rate_hz: int = RATE_HZ) -> Path:
    """`samples` in -1 ... 1 as a .wav file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, rate_hz, 0, "NONE", ""))
        file.writeframes((np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes())
    return path


def tone(hz: float, duration_s: float = 1.0, seed: int = 0) -> npt.NDArray[np.float64]:
    """A tone with a little noise."""
    time_s = np.arange(round(duration_s * RATE_HZ)) / RATE_HZ
    noise = np.random.default_rng(seed).normal(size=len(time_s))
    return np.asarray(0.5 * np.sin(2 * np.pi * hz * time_s) + 0.01 * noise)


def origin(split: Split, index: int) -> str:
    """Where a sample came from; not every split can tell."""
    named: Any = split
    return str(named.origin(index))
