"""lowerdeck.graph.source_lines: the model's own line of a stack trace, the same on every machine."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from lowerdeck.graph.source_lines import first_line, relative_path, relative_stack_trace, source_line
from tests.project import REPOSITORY


def trace(*frames: tuple[str, int]) -> str:
    return "\n".join(f'  File "{path}", line {line}, in forward\n    x = self(x)' for path, line in frames)


def test_frames_of_torch_are_passed_over() -> None:
    called = trace(
        ("/env/lib/python3.11/site-packages/torch/nn/modules/module.py", 1751),
        ("pipeline/lowerdeck/models/networks/resnet8.py", 40),
        ("/env/lib/python3.11/site-packages/torch/nn/modules/conv.py", 565),
        ("<eval_with_key>.7", 12),
    )
    assert source_line(called) == "pipeline/lowerdeck/models/networks/resnet8.py:40"


def test_what_stands_around_a_model_or_what_it_calls_is_no_line_of_it() -> None:
    around = f"{REPOSITORY}/pipeline/lowerdeck/quantization/quantize_model.py"
    called = f"{REPOSITORY}/pipeline/lowerdeck/graph/recurrent_layers.py"
    assert source_line(trace((around, 50), ("nets/whole.py", 3), (called, 41))) == "nets/whole.py:3"
    assert source_line(trace((around, 50))) == ""
    step, standard = f"{REPOSITORY}/pipeline/lowerdeck/steps/export.py", contextlib.__file__
    assert source_line(trace((step, 60), ("nets/whole.py", 3), (standard, 81))) == "nets/whole.py:3"
    assert source_line(trace((step, 60), (standard, 81))) == ""


def test_the_innermost_line_of_the_model_counts() -> None:
    assert source_line(trace(("nets/whole.py", 3), ("nets/block.py", 9), ("torch/nn/functional.py", 1))) == (
        "nets/block.py:9"
    )


AWKWARD_FOLDERS = [
    'a "quoted" name',
    "a'b",
    "back\\slash",
    "two\nlines",
    "ünï çode",
    "50 % $HOME",
    "site-packages/own",
    "x, line 3",
]


@pytest.mark.parametrize("folder", ["first", "second/deeper", *AWKWARD_FOLDERS])
def test_folders_of_the_machine_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str) -> None:
    project = tmp_path / folder
    project.mkdir(parents=True)
    monkeypatch.chdir(project)
    assert source_line(trace((f"{project}/plugins/net.py", 5))) == "plugins/net.py:5"
    package = f"{project}/.venv/lib/python3.11/site-packages/torchvision/models/resnet.py"
    assert source_line(trace((package, 92))) == "torchvision/models/resnet.py:92"
    assert source_line(trace((f"{tmp_path}/elsewhere/net.py", 5))) == "net.py:5"
    assert relative_path("C:\\project\\net.py") == "C:/project/net.py"


@pytest.mark.parametrize("folder", AWKWARD_FOLDERS)
def test_a_stack_trace_is_the_same_in_every_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    project = tmp_path / folder
    project.mkdir(parents=True)
    monkeypatch.chdir(project)
    package = f"{project}/.venv/lib/python3.11/site-packages/torch/nn/functional.py"
    text = trace((f"{project}/plugins/net.py", 5), (package, 92), (f"{tmp_path}/elsewhere/net.py", 7))
    expected = trace(("plugins/net.py", 5), ("torch/nn/functional.py", 92), ("net.py", 7))
    assert relative_stack_trace(text) == expected
    assert relative_stack_trace(expected) == expected


def test_what_has_no_line_says_none() -> None:
    assert source_line(None) == source_line("") == source_line(trace(("torch/nn/modules/conv.py", 5))) == ""


def test_a_file_of_the_project_is_named_alike_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The points of a sweep are built in folders that do not hold the code."""
    path = f"{REPOSITORY}/pipeline/lowerdeck/models/networks/resnet8.py"
    assert relative_path(path) == "lowerdeck/models/networks/resnet8.py"
    monkeypatch.chdir(tmp_path)
    assert relative_path(path) == "lowerdeck/models/networks/resnet8.py"
    assert relative_path("/elsewhere/net.py") == "net.py"


def test_the_first_line_of_an_error_is_never_empty() -> None:
    assert first_line(ValueError("\n  five channels\nmore")) == "five channels"
    assert first_line(AssertionError()) == "AssertionError"
