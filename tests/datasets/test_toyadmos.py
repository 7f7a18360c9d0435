"""ToyADMOS car in its published layout: five frames at a time, gathered by recording."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.datasets import toyadmos
from lowerdeck.datasets.audio import waveform
from lowerdeck.datasets.front_end import compute
from tests.datasets import published
from tests.datasets.sounds import origin

SHAPES = [[1, 200]]


def options(folder: Path, **others: Any) -> toyadmos.Options:
    return toyadmos.Options(**published.make_toyadmos(folder), **others)


def test_samples_are_frames_side_by_side_and_know_their_recording(tmp_path: Path) -> None:
    chosen = options(tmp_path)
    split = toyadmos.load(chosen, SHAPES, seed=0).evaluation
    groups: dict[int, list[int]] = {}
    for index in range(len(split)):
        sample = split[index]
        path, _, frame = origin(split, index).partition(", frame ")
        groups.setdefault(sample.target["group"], []).append(index)
        assert sample.target["label"] == sample.label == Path(path).name.startswith("anomaly")
        if int(frame) == 3:
            features = compute(waveform(Path(path), 16_000), chosen)
            assert np.array_equal(sample.inputs[0].numpy()[0], features[3:8].ravel())
    assert len(groups) == 8
    assert {len(members) for members in groups.values()} == {chosen.num_frames(6400) - 4}
    assert all(members == list(range(members[0], members[-1] + 1)) for members in groups.values()), "one by one"


def test_calibration_has_normal_recordings_in_mixed_order(tmp_path: Path) -> None:
    split = toyadmos.load(options(tmp_path), SHAPES, seed=0).calibration
    origins = [origin(split, index).partition(",")[0] for index in range(8)]
    assert len(set(origins)) > 2
    assert all("train/normal_" in origin for origin in origins)


def test_frames_and_machines_can_be_chosen(tmp_path: Path) -> None:
    chosen = options(tmp_path, machine_id="id_02", first_frame=4, last_frame=12, hop_frames=2)
    split = toyadmos.load(chosen, SHAPES, seed=0).evaluation
    places = [origin(split, index) for index in range(len(split))]
    assert all("_id_02_" in place for place in places)
    assert {place.partition(", frame ")[2] for place in places} == {"4", "6"}


@pytest.mark.parametrize(
    ("change", "others", "message"),
    [
        (lambda root: next((root / "test").iterdir()).rename(root / "test/good.wav"), {}, r"e.g. good.wav; name"),
        (lambda root: None, {"machine_id": "id_09"}, "has no recordings of id_09"),
        (lambda root: (root / "train").rename(root / "training"), {}, r"must be the folder of a machine with train/"),
        (lambda root: None, {"first_frame": 50}, "has 19 frames, and samples are 5 frames from frame 50 to 19"),
    ],
)
def test_another_layout_is_refused(tmp_path: Path, change: Any, others: dict[str, Any], message: str) -> None:
    chosen = options(tmp_path, **others)
    change(Path(chosen.root))
    with pytest.raises(LowerdeckError, match=message):
        toyadmos.load(chosen, SHAPES, seed=0)


def test_options_are_checked(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"hop_frames 0"):
        options(tmp_path, hop_frames=0)
