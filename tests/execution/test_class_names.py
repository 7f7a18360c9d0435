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

FACTORY = {"source": "factory", "options": {"factory": "a:b"}, "weights": "weights.safetensors"}
WEIGHTS = ("background", "ant", "crane", "dog", "crane")


@pytest.fixture(autouse=True)
def _weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A build whose weights name their classes."""
    monkeypatch.chdir(tmp_path)
    save_file({"weight": torch.ones(1)}, "weights.safetensors", {"class_names": json.dumps(WEIGHTS)})
    write_config(model=FACTORY)


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


@pytest.mark.parametrize("name", ["classification", "segmentation", "multi_label"])
@pytest.mark.parametrize("count", [2, 4])
def test_a_file_of_names_has_one_for_each_class(name: str, count: int) -> None:
    """VOC's 20 names without the background, beside 21 scores: metrics and firmware had the names of other classes."""
    write_config(dataset={"source": "mask_folder", "options": {"root": "x", "class_names": "names.txt"}}, model=FACTORY)
    check_class_names(dataset("a", "b", "c"), task(name), 3)
    with pytest.raises(ConfigurationError, match=rf"names.txt names 3 classes and the model tells {count} apart"):
        check_class_names(dataset("a", "b", "c"), task(name), count)


def test_other_numbers_of_classes_than_a_decoder_gives_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    """A forgotten `background: first` gave a mean average precision of almost 0 without a word."""
    check_class_names(dataset("ant", "cat"), task("detection"), 2)
    assert capsys.readouterr().out == ""
    check_class_names(dataset("ant", "cat"), task("detection"), 3)
    assert "names 2 classes and the decoder gives 3; class 0 (ant) is compared with the decoder's class 0" in (
        capsys.readouterr().out
    )


def test_scores_beyond_the_classes_of_the_dataset_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    """Folders of ant, cat and dog, and a model that knows bees, too: dog was compared with the score of cat."""
    save_file({"weight": torch.ones(1)}, "weights.safetensors")
    check_class_names(dataset("ant", "cat", "dog"), task("classification"), 4)
    assert "names 3 classes and the model returns 4 scores; class 2 (dog) is compared with score 2." in (
        capsys.readouterr().out
    )
    check_class_names(dataset("ant", "cat", "dog"), task("classification"), 3)
    assert capsys.readouterr().out == ""


def test_names_that_several_classes_have_are_named_in_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    """ImageNet's were refused."""
    save_file({"weight": torch.ones(1)}, "weights.safetensors")
    check_class_names(dataset(*WEIGHTS), task("classification"), 5)
    assert "several classes have the names crane; they are shown by their numbers" in capsys.readouterr().out
