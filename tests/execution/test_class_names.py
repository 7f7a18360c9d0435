"""Names of classes: those of the dataset and those of the weights have to agree on the outputs."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from lowerdeck import tasks
from lowerdeck.contracts.errors import ConfigurationError
from lowerdeck.evaluation.records import ChosenTask
from lowerdeck.execution.chosen.class_names import check_class_names, chosen_class_names
from tests.handmade_build import write_config

WEIGHTS = ("background", "ant", "crane", "dog", "crane")


@pytest.fixture(autouse=True)
def _weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A build whose weights name their classes."""
    monkeypatch.chdir(tmp_path)
    save_file({"weight": torch.ones(1)}, "weights.safetensors", {"class_names": json.dumps(WEIGHTS)})
    chosen = {"source": "factory", "options": {"factory": "a:b"}, "weights": "weights.safetensors"}
    write_config(model=chosen)


def dataset(*names: str) -> Any:
    return SimpleNamespace(class_names=names, structural=False)


def task(name: str) -> ChosenTask:
    source = tasks.source(name)
    return ChosenTask(task=source, options=source.Options())


def test_those_of_the_dataset_come_first() -> None:
    assert chosen_class_names(dataset("a", "b")) == ("a", "b")
    assert chosen_class_names(dataset()) == WEIGHTS


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("ant", "crane"), "'ant' is class 0 of the dataset and output 1 of the model.*; 2 of 2 classes have another"),
        (("background", "dog", "crane", "ant"), "'dog' is class 1 of the dataset and output 3 .*; 2 of 4 classes"),
        (("x", "y", "z", "v", "w", "dog"), "'dog' is class 5 of the dataset and output 3 .*; 1 of 6 classes"),
    ],
)
@pytest.mark.parametrize(("name", "num_scores"), [("classification", 5), ("segmentation", None), ("multi_label", None)])
def test_a_name_at_another_place_is_refused(
    name: str, num_scores: int | None, names: tuple[str, ...], message: str
) -> None:
    """A build passed with an accuracy of 0, and firmware had the names of other classes."""
    with pytest.raises(ConfigurationError, match=message):
        check_class_names(dataset(*names), task(name), num_scores)


@pytest.mark.parametrize("name", ["embedding", "fidelity"])
def test_a_task_that_compares_no_classes_has_a_warning(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Faces of a gallery were refused because the weights name those of the training."""
    check_class_names(dataset("ant", "crane"), task(name), None)
    assert "export: warning: 'ant' is class 0 of the dataset and output 1 of the model" in capsys.readouterr().out


@pytest.mark.parametrize("names", [(), WEIGHTS[:2], WEIGHTS, (*WEIGHTS, "more"), ("0", "1", "2", "3", "4")])
def test_names_that_the_other_lacks_are_fine(names: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    check_class_names(dataset(*names), task("classification"), 5)
    assert capsys.readouterr().out == ""


def test_decoders_of_detection_may_move_classes() -> None:
    check_class_names(dataset("ant", "crane"), task("detection"), None)


def test_scores_beyond_the_classes_of_the_dataset_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    """Folders of ant, cat and dog, and a model that knows bees, too: dog was compared with the score of cat."""
    save_file({"weight": torch.ones(1)}, "weights.safetensors")
    check_class_names(dataset("ant", "cat", "dog"), task("classification"), 4)
    assert "names 3 classes and the model returns 4 scores; class 2 (dog) is compared with score 2." in (
        capsys.readouterr().out
    )
    check_class_names(dataset("ant", "cat", "dog"), task("classification"), 3)
    assert capsys.readouterr().out == ""
