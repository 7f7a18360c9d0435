"""Speech Commands v2 as published: a folder for each word, `validation_list.txt`, `testing_list.txt`, background noise.

    root/yes/004ae714_nohash_0.wav   root/marvin/...   root/_background_noise_/...   root/testing_list.txt

The classes are those of MLPerf Tiny: ten words, `silence` (pieces of the background noise) and `unknown` (other words).
Evaluation takes the files of testing_list.txt, calibration those of validation_list.txt; silence and unknown words are
as many as of one word on average, drawn with a fixed seed. Source: P. Warden, "Speech Commands: A Dataset for
Limited-Vocabulary Speech Recognition", arXiv:1804.03209.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.datasets import audio, audio_splits, splits
from lowerdeck.fingerprints import data
from lowerdeck.formats.regular_files import check_regular
from lowerdeck.registry.bundled_data import where_to_get

WORDS = ("down", "go", "left", "no", "off", "on", "right", "stop", "up", "yes")
"""In MLPerf Tiny's order, which silence and unknown follow."""
LISTS = {"calibration": "validation_list.txt", "evaluation": "testing_list.txt"}
NOISE = "_background_noise_"
NUM_NAMED = 3
_DRAWN_WITH = 59185
"""RANDOM_SEED of Google's input_data."""


@dataclass(frozen=True, kw_only=True)
class Options(audio.ClipOptions):
    """Keys of `dataset.options`."""

    root: str
    """Folder of the unpacked archive speech_commands_v0.02."""
    words: list[str] = field(default_factory=lambda: list(WORDS))
    """Words with a class of their own, in the order of the model's outputs; silence and unknown follow."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.words or len(set(self.words)) < len(self.words):
            raise ValueError(f"words is {self.words}; it must be a list of different words, e.g. [yes, no]")


def target_kind(options: Options) -> str:
    """The word."""
    return "class"


check = audio_splits.check_clips


def fingerprint(options: Options) -> str:
    """SHA-256 over the lists, and all recordings that samples are made of.

    Raises:
        LowerdeckError: a file is missing.
    """
    root = Path(options.root)
    files = {path for split in LISTS for path in _clips(options, split).files}
    files |= {root / name for name in LISTS.values()}
    return data.files_digest({path.relative_to(root).as_posix(): path for path in files})


def load(options: Options, input_shapes: Sequence[Sequence[int]], seed: int) -> splits.LoadedDataset:
    """The features of the words of both lists.

    Args:
        options: see Options
        input_shapes: the model's, e.g. [[1, 1, 49, 10]]
        seed: fixes the order of the samples

    Raises:
        ConfigurationError: options that do not fit the model.
        LowerdeckError: a file is missing.
    """
    class_names = (*options.words, "silence", "unknown")
    clips = {split: _clips(options, split) for split in LISTS}
    return audio_splits.clip_dataset(options, input_shapes, seed, clips, class_names)


def _clips(options: Options, split: str) -> audio_splits.Clips:
    root = Path(options.root)
    listed = _listed(root, LISTS[split])
    words = {path: Path(path).parent.name for path in listed}
    known = [path for path in listed if words[path] in options.words]
    others = [path for path in listed if words[path] not in options.words]
    if absent := [word for word in options.words if word not in words.values()]:
        raise LowerdeckError(
            f"{root / LISTS[split]} lists no recordings of {', '.join(absent)}; correct dataset.options.words"
        )
    count, generator = max(1, round(len(known) / len(options.words))), np.random.default_rng(_DRAWN_WITH)
    unknown = sorted(generator.permutation(others)[:count].tolist())
    silence = _silence(options, split, count)
    labels = [options.words.index(words[path]) for path in known]
    labels += [len(options.words)] * len(silence) + [len(options.words) + 1] * len(unknown)
    files = [root / path for path in known] + [path for path, _ in silence] + [root / path for path in unknown]
    starts = [0] * len(known) + [start for _, start in silence] + [0] * len(unknown)
    return audio_splits.Clips(files=files, labels=labels, starts=starts)


def _listed(root: Path, name: str) -> list[str]:
    try:
        lines = check_regular(root / name).read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        raise LowerdeckError(
            f"{root / name} cannot be read: {error}. dataset.options.root must be the folder of the unpacked archive "
            f"speech_commands_v0.02{where_to_get(root)}"
        ) from error
    if missing := [path for path in lines if not (root / path).is_file()]:
        named = ", ".join(missing[:NUM_NAMED])
        raise LowerdeckError(
            f"{len(missing)} of {len(lines)} recordings in {root / name} are missing ({named}); unpack the "
            "archive again"
        )
    return sorted(lines)


def _silence(options: Options, split: str, count: int) -> list[tuple[Path, int]]:
    """Pieces of the background noise: calibration has the first half of each recording, evaluation the second."""
    paths = sorted(path for path in (Path(options.root) / NOISE).glob("*") if path.suffix in audio.SUFFIXES)
    places = []
    for path in paths:
        num_samples, _ = audio.length(path)
        half = num_samples // 2
        first, end = (0, half) if split == "calibration" else (half, num_samples)
        places += [(path, start) for start in range(first, end - options.clip_samples + 1, options.clip_samples // 2)]
    if not places:
        raise LowerdeckError(
            f"{Path(options.root) / NOISE} has no recordings of at least two clips, which silence is made of; unpack "
            "the archive again"
        )
    chosen = np.random.default_rng(_DRAWN_WITH).permutation(len(places))[:count]
    return [places[position] for position in sorted(chosen.tolist())]
