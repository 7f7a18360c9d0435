"""Makes stand-in data for Speech Commands v2: words spoken by espeak-ng in noise, in the data set's own layout.

    python -m data.stand_in_speech        (what the frozen stage `speech` of data/mlperf_tiny/dvc.yaml runs)

It is stand-in data, not the benchmark's: a synthesiser's voices, speeds and pitches are far fewer than people's. Voices
of training are not those of calibration and evaluation. Needs espeak-ng (`apt install espeak-ng`).
"""

from __future__ import annotations

import hashlib
import io
import subprocess
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import soundfile
from scipy.signal import lfilter, resample_poly

from data.prepare_digits import write_atomically

FOLDER = Path("data/stand_ins/speech_commands")
RATE_HZ = 16_000
KEYWORDS = ("down", "go", "left", "no", "off", "on", "right", "stop", "up", "yes")
OTHERS = (
    "bed",
    "bird",
    "cat",
    "dog",
    "four",
    "happy",
    "house",
    "marvin",
    "nine",
    "six",
    "three",
    "tree",
    "wow",
    "zero",
)
ACCENTS = ("en-us", "en-gb", "en-gb-scotland", "en-gb-x-rp", "en-gb-x-gbclan", "en-gb-x-gbcwmd", "en-029")
TRAINING_VARIANTS = ("m1", "m2", "m3", "m5", "m6", "m8", "f1", "f3", "f5", "klatt", "klatt3", "Andy", "Annie", "adam",
                     "linda", "john", "steph", "Lee", "Gene", "pablo", "grandma", "victor")  # fmt: skip
EVALUATION_VARIANTS = ("m4", "m7", "f2", "f4", "klatt2", "Alex", "Alicia", "belinda", "ed", "michael", "Mike", "quincy")
SEED = 20240229
PER_WORD = {"testing_list.txt": 30, "validation_list.txt": 6}
COMPRESSION = 0.92
"""Of Opus, as soundfile counts: about 4 KB for a word."""

Floats = npt.NDArray[np.float64]


def main() -> None:
    """Write the words of both lists, other words as many as of one keyword, and noise for silence."""
    generator = np.random.default_rng(SEED)
    for name, count in PER_WORD.items():
        listed = []
        unknown = [OTHERS[number % len(OTHERS)] for number in range(count)]
        for number, word in enumerate([*np.repeat(KEYWORDS, count).tolist(), *unknown]):
            path = f"{word}/{hashlib.sha256(f'{name}{number}'.encode()).hexdigest()[:8]}_nohash_0.ogg"
            write_sound(FOLDER / path, spoken(word, EVALUATION_VARIANTS, generator))
            listed.append(path)
        write_atomically(FOLDER / name, ("\n".join(sorted(listed)) + "\n").encode())
    for number in range(3):
        write_sound(FOLDER / f"_background_noise_/noise_{number}.ogg", 0.2 * noise(20 * RATE_HZ, generator))


def spoken(word: str, variants: tuple[str, ...], generator: np.random.Generator) -> Floats:
    """A word at any place of a second of noise, float64 [16000], -1 ... 1."""
    voice = f"{generator.choice(ACCENTS)}+{generator.choice(variants)}"
    # Few speeds and pitches, so that what was synthesised is used again.
    speech = synthesised(word, voice, int(generator.choice((120, 150, 185))), int(generator.choice((30, 50, 70))))
    return in_noise(speech, RATE_HZ, generator)


def in_noise(speech: Floats, num_samples: int, generator: np.random.Generator, at: int | None = None) -> Floats:
    """Speech at sample `at`, or anywhere, in noise 3 to 25 dB below it, as loud as a recording may be."""
    speech = speech[:num_samples]
    start = int(generator.integers(0, num_samples - len(speech) + 1)) if at is None else at
    sound = np.zeros(num_samples)
    sound[start : start + len(speech)] = speech
    ratio = 10 ** (generator.uniform(3, 25) / 20)
    sound += noise(num_samples, generator) * np.sqrt(np.square(speech).mean()) / ratio
    return np.asarray(sound * generator.uniform(0.1, 0.9) / np.abs(sound).max())


def noise(num_samples: int, generator: np.random.Generator) -> Floats:
    """Noise of any colour from white to brown, root mean square 1."""
    sound = lfilter([1.0], [1.0, -generator.uniform(0.0, 0.98)], generator.normal(size=num_samples))
    slow = 1 + 0.5 * np.sin(np.arange(num_samples) / RATE_HZ * 2 * np.pi * generator.uniform(0.3, 6))
    sound = np.asarray(sound) * slow
    scaled: Floats = sound / np.sqrt(np.square(sound).mean())
    return scaled


@cache
def synthesised(word: str, voice: str, words_per_minute: int, pitch: int) -> Floats:
    """A word as espeak-ng speaks it, 16 kHz, without the silence around it.

    Raises:
        FileNotFoundError: espeak-ng is not installed.
    """
    command = ["espeak-ng", "-v", voice, "-s", str(words_per_minute), "-p", str(pitch), "--stdout", word]
    samples, rate = soundfile.read(io.BytesIO(subprocess.run(command, capture_output=True, check=True).stdout))
    sound = resample_poly(samples, RATE_HZ // 50, rate // 50)
    loud = np.flatnonzero(np.abs(sound) > 0.02 * np.abs(sound).max())
    trimmed: Floats = sound[loud[0] : loud[-1] + 1]
    return trimmed


def write_sound(path: Path, sound: Floats) -> None:
    """Write a recording, Opus in Ogg."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = io.BytesIO()
    soundfile.write(content, sound, RATE_HZ, format="OGG", subtype="OPUS", compression_level=COMPRESSION)
    write_atomically(path, content.getvalue())


if __name__ == "__main__":
    main()
