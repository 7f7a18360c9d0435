"""Speech Commands in its published layout."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.datasets import speech_commands
from tests.datasets import published
from tests.datasets.sounds import origin

SHAPES = [[1, 1, 49, 40]]


def test_lists_decide_the_splits_and_twelve_classes(tmp_path: Path) -> None:
    options = speech_commands.Options(**published.make_speech_commands(tmp_path))
    dataset = speech_commands.load(options, SHAPES, seed=0)
    assert dataset.num_classes == 12
    for split, name in ((dataset.calibration, "validation_list.txt"), (dataset.evaluation, "testing_list.txt")):
        assert Counter(sample.label for sample in iter(split)) == dict.fromkeys(range(12), 2)
        listed = (tmp_path / name).read_text().split()
        for index in range(len(split)):
            path, label = Path(origin(split, index)), split[index].label
            word = path.parent.name
            if label == 10:
                assert word == "_background_noise_"
            else:
                assert path.relative_to(tmp_path).as_posix() in listed
                assert label is not None
                assert word in ("bed", "marvin") if label == 11 else word == speech_commands.WORDS[label]


def test_words_can_be_chosen(tmp_path: Path) -> None:
    options = speech_commands.Options(**published.make_speech_commands(tmp_path), words=["marvin", "go"])
    dataset = speech_commands.load(options, SHAPES, seed=0)
    assert (dataset.num_classes, dataset.class_names) == (4, ("marvin", "go", "silence", "unknown"))
    split = dataset.evaluation
    labels = {Path(origin(split, index)).parent.name: split[index].label for index in range(8)}
    assert (labels["marvin"], labels["go"], labels["_background_noise_"]) == (0, 1, 2)
    with pytest.raises(ValueError, match=r"a list of different words"):
        speech_commands.Options(root=str(tmp_path), words=["go", "go"])
    with pytest.raises(LowerdeckError, match=r"lists no recordings of sheila; correct dataset.options.words"):
        speech_commands.fingerprint(speech_commands.Options(root=str(tmp_path), words=["sheila"]))


def test_an_incomplete_copy_is_refused(tmp_path: Path) -> None:
    options = speech_commands.Options(**published.make_speech_commands(tmp_path))
    recordings = sorted((tmp_path / "yes").iterdir())
    for path in recordings:
        path.unlink()
    with pytest.raises(LowerdeckError, match=r"2 of 24 recordings in .*validation_list.txt are missing \(yes/.*unpack"):
        speech_commands.fingerprint(options)
    (tmp_path / "validation_list.txt").unlink()
    with pytest.raises(LowerdeckError, match=r"must be the folder of the unpacked archive"):
        speech_commands.fingerprint(options)


def test_silence_needs_background_noise(tmp_path: Path) -> None:
    options = speech_commands.Options(**published.make_speech_commands(tmp_path))
    for path in (tmp_path / "_background_noise_").glob("*.wav"):
        path.unlink()
    with pytest.raises(LowerdeckError, match=r"has no recordings of at least two clips"):
        speech_commands.fingerprint(options)
