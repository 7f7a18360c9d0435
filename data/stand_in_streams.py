"""Makes stand-in data for the streaming wake word: `marvin` among other words and noise, in the layout of MLPerf Tiny.

    python -m data.stand_in_streams        (what the frozen stage `streams` of data/mlperf_tiny/dvc.yaml runs)

It is stand-in data, not the benchmark's: minutes instead of twenty, spoken by espeak-ng. Voices of training are not
those of calibration and evaluation. Needs espeak-ng (`apt install espeak-ng`).
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt

from data.prepare_digits import write_atomically
from data.stand_in_speech import (
    ACCENTS,
    EVALUATION_VARIANTS,
    KEYWORDS,
    OTHERS,
    RATE_HZ,
    in_noise,
    noise,
    synthesised,
    write_sound,
)

FOLDER = Path("data/stand_ins/streaming_wake_word")
WAKE_WORD = "marvin"
SIMILAR = ("marble", "martin", "starving", "carving", "mark", "heaven", "morning", "marvellous")
"""Words that a careless model takes for the wake word."""
FURTHER = tuple(word for word in (*KEYWORDS, *OTHERS) if word != WAKE_WORD)
SEED = 20240229
STREAM_S = 20.0
NUM_STREAMS = {"calibration": 2, "evaluation": 18}

Floats = npt.NDArray[np.float64]
Windows = list[tuple[float, float]]


def main() -> None:
    """Write the streams and lists of both splits."""
    generator = np.random.default_rng(SEED)
    for split, count in NUM_STREAMS.items():
        listed = []
        for number in range(count):
            sound, windows = stream(generator)
            write_sound(FOLDER / f"{split}_{number:02}.ogg", sound)
            listed.append(
                {
                    "wav_file": f"{split}_{number:02}.ogg",
                    "sample_rate": RATE_HZ,
                    "length_sec": STREAM_S,
                    "detection_windows": [[round(start, 3), round(end, 3)] for start, end in windows],
                }
            )
        write_atomically(FOLDER / f"{split}.json", (json.dumps(listed, indent=1) + "\n").encode())


def stream(generator: np.random.Generator) -> tuple[Floats, Windows]:
    """Words one after the other in noise, float64 [samples], and when the wake word begins and ends."""
    sound = np.zeros(round(STREAM_S * RATE_HZ))
    windows: Windows = []
    voice = f"{generator.choice(ACCENTS)}+{generator.choice(EVALUATION_VARIANTS)}"
    place = round(generator.uniform(0.3, 1.0) * RATE_HZ)
    while True:
        word = WAKE_WORD if generator.uniform() < 0.28 else str(generator.choice((*FURTHER, *SIMILAR)))
        speech = synthesised(word, voice, int(generator.choice((120, 150, 185))), int(generator.choice((30, 50, 70))))
        end = place + len(speech)
        if end > len(sound) - RATE_HZ:
            break
        sound[place:end] += speech * generator.uniform(0.4, 1.0) / np.abs(speech).max()
        if word == WAKE_WORD:
            windows.append((place / RATE_HZ, end / RATE_HZ))
        place = end + round(generator.uniform(0.15, 1.2) * RATE_HZ)
    ratio = 10 ** (generator.uniform(8, 25) / 20)
    sound += noise(len(sound), generator) * 0.15 / ratio
    return sound * generator.uniform(0.2, 0.9) / np.abs(sound).max(), windows


def window(kind: int, variants: tuple[str, ...], generator: np.random.Generator) -> Floats:
    """A second for training, float64 [16384]: 0 the wake word, at its end; 1 noise; 2 other words, or a part of it."""
    num_samples = round(1.024 * RATE_HZ)
    if kind == 1:
        return noise(num_samples, generator) * generator.uniform(0.001, 0.15)
    voice = f"{generator.choice(ACCENTS)}+{generator.choice(variants)}"
    how = int(generator.choice((120, 150, 185))), int(generator.choice((30, 50, 70)))
    words = (*FURTHER, *SIMILAR, *SIMILAR, WAKE_WORD)
    word = WAKE_WORD if kind == 0 else str(generator.choice(words))
    speech = synthesised(word, voice, *how)
    before = synthesised(str(generator.choice(FURTHER)), voice, *how)
    gap = np.zeros(round(generator.uniform(0.15, 0.8) * RATE_HZ))
    if kind == 0:
        after = np.zeros(round(generator.uniform(0.0, 0.3) * RATE_HZ))
    elif word == WAKE_WORD:  # heard in part, which must not fire
        speech, after = speech[: round(len(speech) * generator.uniform(0.2, 0.55))], np.zeros(0)
    else:
        after = np.zeros(round(generator.uniform(0.0, 0.6) * RATE_HZ))
    told = np.concatenate([before, gap, speech, after])
    told = np.concatenate([np.zeros(max(0, num_samples - len(told))), told])[-num_samples:]
    return in_noise(told, num_samples, generator, at=0)


if __name__ == "__main__":
    main()
