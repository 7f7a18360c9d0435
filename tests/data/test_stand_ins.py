"""The committed stand-ins of MLPerf Tiny's data: complete, small, disjoint, and made by the programs beside them."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from data import stand_in_machines, stand_in_pictures, stand_in_speech, stand_in_wake_images
from lowerdeck import datasets
from lowerdeck.contracts.samples import Dataset
from lowerdeck.datasets.overlap import check_disjoint
from tests.project import REPOSITORY

STAND_INS = REPOSITORY / "data" / "stand_ins"
USED_BY = {
    "cifar10_stand_in": ("resnet8_pictures", "resnet8_pictures"),
    "visual_wake_words_stand_in": ("mobilenet_v1_025", "mobilenet_v1_wake_images"),
    "speech_commands_stand_in": ("ds_cnn", "ds_cnn_keywords"),
    "toyadmos_stand_in": ("deep_autoencoder", "deep_autoencoder_machines"),
    "streaming_wake_word_stand_in": ("wake_word", "wake_word"),
}
"""Dataset -> the model that is trained for it, and its checkpoint."""


def conf(group: str, name: str) -> Any:
    return yaml.safe_load((REPOSITORY / "conf" / group / f"{name}.yaml").read_text())


@pytest.fixture(scope="module")
def loaded() -> dict[str, Dataset]:
    """The datasets as their models take them."""
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(REPOSITORY)
        for name, (model, _) in USED_BY.items():
            values = conf("dataset", name)
            source = datasets.source(values["source"])
            found[name] = source.load(source.Options(**values["options"]), conf("model", model)["input_shapes"], seed=0)
    return found


@pytest.mark.parametrize(
    ("name", "calibration", "evaluation"),
    [
        ("cifar10_stand_in", 100, 500),
        ("visual_wake_words_stand_in", 48, 400),
        ("speech_commands_stand_in", 72, 360),
        ("streaming_wake_word_stand_in", 2, 18),
    ],
)
def test_splits_are_as_large_as_the_readme_says(
    loaded: dict[str, Dataset], name: str, calibration: int, evaluation: int
) -> None:
    dataset = loaded[name]
    assert (len(dataset.calibration), len(dataset.evaluation)) == (calibration, evaluation)


@pytest.mark.parametrize("name", USED_BY)
def test_no_evaluation_sample_calibrates(
    loaded: dict[str, Dataset], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(REPOSITORY)
    check_disjoint(loaded[name].calibration, loaded[name].evaluation)


def test_classes_are_balanced(monkeypatch: pytest.MonkeyPatch, loaded: dict[str, Dataset]) -> None:
    monkeypatch.chdir(REPOSITORY)
    pictures = Counter(sample.label for sample in iter(loaded["cifar10_stand_in"].evaluation))
    assert pictures == dict.fromkeys(range(10), 50)
    windows = loaded["toyadmos_stand_in"].evaluation
    recordings = {windows[index].target["group"]: windows[index].label for index in range(0, len(windows), 4)}
    assert Counter(recordings.values()) == {0: 60, 1: 60}


def test_streams_have_events_in_them(monkeypatch: pytest.MonkeyPatch, loaded: dict[str, Dataset]) -> None:
    lists = json.loads((STAND_INS / "streaming_wake_word" / "evaluation.json").read_text())
    events = [event for entry in lists for event in entry["detection_windows"]]
    assert len(events) >= 30
    assert all(0 < start < end < 20 for start, end in events)


def test_they_are_small() -> None:
    sizes = [path.stat().st_size for path in STAND_INS.rglob("*") if path.is_file()]
    assert sum(sizes) < 8_000_000


def test_pictures_are_those_that_the_program_makes() -> None:
    content = np.fromfile(STAND_INS / "pictures/cifar-10-batches-bin/data_batch_1.bin", dtype=np.uint8)
    pixels, labels = stand_in_pictures.pictures(stand_in_pictures.NUM_CALIBRATION_PER_BATCH, stand_in_pictures.SEED)
    records = content.reshape(-1, 3073)
    assert np.array_equal(records[:, 0], labels)
    # Another release of PIL may round a pixel otherwise.
    assert np.abs(records[:, 1:].reshape(pixels.shape).astype(int) - pixels).mean() < 0.5


def test_programs_make_the_same_for_a_seed() -> None:
    first, again = (stand_in_machines.machine("bearing", np.random.default_rng(3)) for _ in range(2))
    assert np.array_equal(first, again)
    assert not np.allclose(first, stand_in_machines.machine(None, np.random.default_rng(3)), atol=1e-3)


def test_people_of_training_are_not_those_of_evaluation() -> None:
    pytest.importorskip("skimage", reason="pip install 'lowerdeck[stand-ins]'")
    training, evaluation = (stand_in_wake_images.read_patches(training=flag) for flag in (True, False))
    for one, other in zip(training, evaluation, strict=True):
        assert not {patch.tobytes() for patch in one} & {patch.tobytes() for patch in other}


def test_voices_of_training_are_not_those_of_evaluation() -> None:
    assert not set(stand_in_speech.EVALUATION_VARIANTS) & set(stand_in_speech_variants())


def stand_in_speech_variants() -> tuple[str, ...]:
    from data.stand_in_speech import TRAINING_VARIANTS

    return TRAINING_VARIANTS


@pytest.mark.parametrize("checkpoint", [checkpoint for _, checkpoint in USED_BY.values()])
def test_the_report_belongs_to_the_weights(checkpoint: str) -> None:
    folder = Path(REPOSITORY, "data", "checkpoints")
    report = json.loads((folder / f"{checkpoint}.json").read_text())
    content = (folder / f"{checkpoint}.safetensors").read_bytes()
    assert report["weights_sha256"] == hashlib.sha256(content).hexdigest()
    assert report["data"] == "stand-in data, not the benchmark's"


@pytest.mark.parametrize("name", [*USED_BY, *(model for model, _ in USED_BY.values())])
def test_every_option_says_that_it_is_no_benchmark(name: str) -> None:
    group = "dataset" if name in USED_BY else "model"
    first = (REPOSITORY / "conf" / group / f"{name}.yaml").read_text().splitlines()[0]
    assert "not the benchmark's" in first
