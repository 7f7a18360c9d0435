"""Makes stand-in data for ToyADMOS: simulated sounds of a toy car's drive, sound and broken, in the data set's layout.

    python -m data.stand_in_machines        (what the frozen stage `machines` of data/mlperf_tiny/dvc.yaml runs)

It is stand-in data, not the benchmark's. A drive is a motor with the harmonics of its shaft, a gear with sidebands and
the noise of wheels, at a speed that drifts. Faults are those of real drives: a bearing with a damaged race (impulses
that excite a resonance), an imbalance (a strong first harmonic that modulates the noise), a worn tooth (an impulse each
turn) and a loose mount (many harmonics of half the speed). Source of the models: R. B. Randall, "Vibration-based
Condition Monitoring", Wiley 2011, chapters 2 and 5.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy.signal import lfilter

from data.stand_in_speech import RATE_HZ, write_sound

FOLDER = Path("data/stand_ins/ToyCar")
FAULTS = ("bearing", "imbalance", "tooth", "looseness")
SEED = 20240229
DURATION_S = 2.2
NUM_TRAINING, NUM_NORMAL, NUM_ANOMALOUS = 24, 60, 60
"""Recordings in train/, which calibrate the ranges, and in test/."""

Floats = npt.NDArray[np.float64]


def main() -> None:
    """Write the recordings of one machine, `id_01`."""
    generator = np.random.default_rng(SEED)
    for number in range(NUM_TRAINING):
        write_sound(FOLDER / f"train/normal_id_01_{number:08}.ogg", machine(None, generator))
    for number in range(NUM_NORMAL):
        write_sound(FOLDER / f"test/normal_id_01_{number:08}.ogg", machine(None, generator))
    for number in range(NUM_ANOMALOUS):
        fault = FAULTS[number % len(FAULTS)]
        write_sound(FOLDER / f"test/anomaly_id_01_{number:08}.ogg", machine(fault, generator))


def machine(fault: str | None, generator: np.random.Generator) -> Floats:
    """A recording, float64 [samples], -1 ... 1."""
    num_samples = round(DURATION_S * RATE_HZ)
    time_s = np.arange(num_samples) / RATE_HZ
    drift = 1 + 0.02 * np.sin(2 * np.pi * generator.uniform(0.2, 0.6) * time_s + generator.uniform(0, 6.3))
    turns = np.cumsum(generator.uniform(38, 46) * drift) / RATE_HZ
    shaft = sum(0.5 / order * np.sin(2 * np.pi * (order * turns + generator.uniform())) for order in range(1, 7))
    teeth = 17
    gear = (1 + 0.3 * np.sin(2 * np.pi * turns)) * np.sin(2 * np.pi * (teeth * turns + generator.uniform()))
    gear = gear + 0.4 * np.sin(2 * np.pi * 2 * teeth * turns)
    wheels = np.asarray(lfilter([1.0], [1.0, -0.7], generator.normal(size=num_samples)))
    sound = generator.uniform(0.8, 1.2) * shaft + generator.uniform(0.5, 0.8) * gear + 0.35 * wheels
    if fault is not None:
        sound = sound + generator.uniform(0.5, 1.8) * _fault(fault, turns, wheels, generator)
    return np.asarray(0.08 * generator.uniform(0.8, 1.25) * sound)


def _fault(fault: str, turns: Floats, wheels: Floats, generator: np.random.Generator) -> Floats:
    """What a fault adds."""
    if fault == "imbalance":
        return np.asarray(0.9 * np.sin(2 * np.pi * turns) + 0.3 * wheels * np.sin(2 * np.pi * turns))
    if fault == "looseness":
        orders = np.arange(1, 16, 2) / 2
        return np.asarray(sum(0.25 * np.sin(2 * np.pi * (order * turns + generator.uniform())) for order in orders))
    per_turn, ring_hz = (3.585, 3200.0) if fault == "bearing" else (1.0, 1400.0)
    # One impulse whenever the count of impacts rises; real balls slip a little.
    impacts = np.floor(turns * per_turn * generator.uniform(0.98, 1.02))
    hits = np.diff(impacts, prepend=impacts[0]) * generator.uniform(0.6, 1.0, len(turns))
    damping, angle = 0.985, 2 * np.pi * ring_hz / RATE_HZ
    return np.asarray(lfilter([1.0], [1.0, -2 * damping * np.cos(angle), damping**2], hits)) * 0.5


if __name__ == "__main__":
    main()
