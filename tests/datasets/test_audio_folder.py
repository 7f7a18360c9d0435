"""Folders of recordings: classes by folder, clips of one length, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from lowerdeck.contracts.errors import ConfigurationError, LowerdeckError
from lowerdeck.datasets import audio_folder
from lowerdeck.datasets.front_end import compute
from tests.datasets.sounds import RATE_HZ, origin, tone, write_wav

SHAPES = [[1, 1, 49, 40]]


def options(root: Path, **others: Any) -> audio_folder.Options:
    return audio_folder.Options(root=str(root), **others)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for split in ("calibration", "evaluation"):
        write_wav(tmp_path / split / "no" / "a.wav", tone(300, 0.5))
        write_wav(tmp_path / split / "yes" / "a.wav", tone(900, 1.7, seed=1))
    return tmp_path


def test_classes_are_the_folders_in_order(root: Path) -> None:
    dataset = audio_folder.load(options(root), SHAPES, seed=0)
    assert (dataset.num_classes, dataset.class_names) == (2, ("no", "yes"))
    labels = {Path(origin(dataset.evaluation, index)).parent.name: dataset.evaluation[index].label for index in (0, 1)}
    assert labels == {"no": 0, "yes": 1}


def test_short_recordings_are_followed_by_silence_and_long_ones_cut(root: Path) -> None:
    chosen = options(root)
    split = audio_folder.load(chosen, SHAPES, seed=0).evaluation
    by_label = {split[index].label: split[index].inputs[0].numpy()[0, 0] for index in (0, 1)}
    assert np.allclose(by_label[0][-10:], np.log(1e-6), atol=1e-4), "silence"
    samples, _ = soundfile.read(root / "evaluation/yes/a.wav", dtype="float32")
    assert np.array_equal(by_label[1], compute(samples[:RATE_HZ], chosen))


def test_features_may_come_before_frames(root: Path) -> None:
    plain = audio_folder.load(options(root), SHAPES, seed=0).evaluation[0].inputs[0]
    turned = audio_folder.load(options(root, layout="features_first"), [[1, 40, 49, 1]], seed=0).evaluation[0].inputs[0]
    assert np.array_equal(plain[0, 0].numpy().T, turned[0, :, :, 0].numpy())


def test_the_peak_is_scaled_where_it_is_set(root: Path) -> None:
    loud, quiet = (audio_folder.load(options(root, peak=peak), SHAPES, seed=0).evaluation[0] for peak in (1.0, 0.01))
    assert float((loud.inputs[0] - quiet.inputs[0]).max()) == pytest.approx(2 * np.log(100), rel=0.05)


@pytest.mark.parametrize("suffix", ["flac", "ogg"])
def test_other_formats_and_several_channels(root: Path, suffix: str) -> None:
    (root / "evaluation/no/a.wav").unlink()
    channels = np.stack([tone(300), tone(300, seed=2)], axis=1)
    soundfile.write(root / f"evaluation/no/a.{suffix}", channels, RATE_HZ)
    split = audio_folder.load(options(root), SHAPES, seed=0).evaluation
    assert all(np.isfinite(split[index].inputs[0].numpy()).all() for index in (0, 1))


def test_a_model_of_another_shape_is_refused(root: Path) -> None:
    refusal = r"gives 49 frames of 40 features, .*\[\[1, 49, 40\]\].*\[\[1, 1960\]\]"
    with pytest.raises(ConfigurationError, match=refusal):
        audio_folder.check(options(root), [[1, 1, 40, 49]])
    audio_folder.check(options(root), [[1, 1960]])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda path: write_wav(path, tone(300), rate_hz=8000),
            "has 8000 samples a second, .* resample the recordings",
        ),
        (lambda path: path.write_bytes(b"RIFF nothing"), "cannot be decoded"),
        (lambda path: path.rename(path.with_suffix(".mp3")), r"1 files that are not recordings \(no/a.mp3\)"),
        (lambda path: path.unlink(), "no recordings in .* for no"),
    ],
)
def test_what_is_wrong_with_a_recording_is_said(root: Path, damage: Any, message: str) -> None:
    damage(root / "evaluation/no/a.wav")
    with pytest.raises(LowerdeckError, match=message):
        list(iter(audio_folder.load(options(root), SHAPES, seed=0).evaluation))
