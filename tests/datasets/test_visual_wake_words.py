"""Visual Wake Words in both layouts: MLPerf Tiny's folders, and COCO with its annotations."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.contracts.samples import Split
from lowerdeck.datasets import visual_wake_words
from tests.datasets import published
from tests.datasets.sounds import origin

SHAPES = [[1, 3, 96, 96]]


def names(split: Split) -> set[str]:
    return {Path(origin(split, index)).name for index in range(len(split))}


def test_folders_are_split_as_keras_splits_them(tmp_path: Path) -> None:
    chosen = visual_wake_words.Options(**published.make_visual_wake_words(tmp_path), calibration_share=0.25)
    dataset = visual_wake_words.load(chosen, SHAPES, seed=0)
    assert (len(dataset.calibration), len(dataset.evaluation)) == (6, 18)
    assert names(dataset.calibration) == {
        f"COCO_val2014_{length}{number:011}.jpg" for length in (6, 10) for number in range(3)
    }
    split = dataset.evaluation
    labels = {Path(origin(split, index)).parent.name: split[index].label for index in range(18)}
    assert labels == {"person": 1, "non_person": 0}
    assert dataset.class_names == ("non_person", "person")


def test_annotations_say_where_a_person_is_large_enough(tmp_path: Path) -> None:
    dataset = visual_wake_words.load(visual_wake_words.Options(**published.make_coco(tmp_path)), SHAPES, seed=0)
    found = {
        int(Path(origin(split, index)).stem[-2:]): split[index].label
        for split in (dataset.calibration, dataset.evaluation)
        for index in range(len(split))
    }
    assert found == {0: 1, 1: 1, 2: 1, 3: 0, 4: 0, 5: 0, 6: 0, 7: 0}, "the person of image 3 is too small"


def test_what_is_wrong_is_said(tmp_path: Path) -> None:
    options = published.make_coco(tmp_path)
    (tmp_path / "val2014" / "COCO_val2014_000000000002.jpg").unlink()
    with pytest.raises(LowerdeckError, match=r"1 images of .* are not in .*COCO_val2014_000000000002.jpg"):
        visual_wake_words.fingerprint(visual_wake_words.Options(**options))
    Path(options["annotations"]).write_text(json.dumps({"images": []}))
    with pytest.raises(LowerdeckError, match=r"is not COCO's instances_\*.json .*KeyError: 'categories'"):
        visual_wake_words.fingerprint(visual_wake_words.Options(**options))
    (tmp_path / "cats" / "cat").mkdir(parents=True)
    (tmp_path / "val2014" / "COCO_val2014_000000000001.jpg").rename(tmp_path / "cats/cat/1.jpg")
    with pytest.raises(LowerdeckError, match=r"has the folders cat; it must have non_person and person"):
        visual_wake_words.fingerprint(visual_wake_words.Options(root=str(tmp_path / "cats")))
    with pytest.raises(ValueError, match=r"must be between 0 and 1"):
        visual_wake_words.Options(root="x", calibration_share=1.0)
