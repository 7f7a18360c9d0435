"""lowerdeck.config.compare_section: what Hydra composes, without Hydra where that is certain."""

from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import Mock

import pytest

from lowerdeck.config import compare_section as module
from lowerdeck.config.compare_section import compare_section
from lowerdeck.config.compose import compose
from lowerdeck.config.options import package_files
from lowerdeck.contracts.errors import ConfigurationError

PRIMARY = (package_files() / "conf" / "config.yaml").read_text()
OWN = PRIMARY.replace("[quality, ram, time, size]", "[size, time]")
CHOICES = "model: mobilenet_v2\ndataset: random\ntask: fidelity\ntarget: xnnpack_cpu\n"
GLOBAL = "# @package _global_\nevaluation: {name: mine}\ncompare: {objective: [time]}\n"


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf" / "evaluation").mkdir(parents=True)
    (tmp_path / "params.yaml").write_text(CHOICES)
    return tmp_path


def given(workspace: Path, **texts: str) -> None:
    places = {"primary": "conf/config.yaml", "option": "conf/evaluation/mine.yaml", "params": "params.yaml"}
    for name, text in texts.items():
        (workspace / places[name]).write_text(text)


CASES = {
    "the package's": ({}, True),
    "the workspace's own": ({"primary": OWN}, True),
    "none": ({"primary": PRIMARY.partition("\ncompare:")[0]}, True),
    "by params.yaml": ({"params": CHOICES + "overrides: {compare: {objective: [time]}}"}, False),
    "by an option": ({"params": CHOICES + "evaluation: mine", "option": GLOBAL}, False),
    "by an option that is not chosen": ({"option": GLOBAL}, False),
    "interpolated": ({"primary": OWN.replace("[size, time]", "['${target.name}']")}, False),
    "by a group of this name": ({"primary": OWN.replace("- _self_", "- _self_\n  - evaluation@compare: mine")}, False),
}


@pytest.mark.parametrize("case", CASES)
def test_it_is_that_of_the_whole_configuration(case: str, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts, without_hydra = CASES[case]
    given(workspace, **texts)
    if case == "by a group of this name":
        given(workspace, option="objective: [ram]\n")
    wanted = compose(Path("params.yaml"), Path("conf")).compare
    composed = Mock(side_effect=compose)
    monkeypatch.setattr(module, "compose", composed)
    assert compare_section(Path("params.yaml"), Path("conf")) == wanted
    assert composed.called is not without_hydra


@pytest.mark.parametrize(
    "value", ["{objective: []}", "{objective: [1]}", "{objectives: [size]}", "[size]", "{objective: [size}"]
)
def test_what_is_invalid_is_reported_as_by_compose(value: str, workspace: Path) -> None:
    given(
        workspace,
        primary=f"{PRIMARY.partition('compare:')[0]}compare: {value}\n",
    )
    with pytest.raises(ConfigurationError) as wanted:
        compose(Path("params.yaml"), Path("conf"))
    with pytest.raises(ConfigurationError) as received:
        compare_section(Path("params.yaml"), Path("conf"))
    assert str(received.value) == str(wanted.value)


def test_recorded_builds_can_be_compared_while_a_build_cannot_be_configured(workspace: Path) -> None:
    given(workspace, primary=OWN, params=json.dumps({"target": "no_such_target"}))
    assert compare_section(Path("params.yaml"), Path("conf")).objective == ["size", "time"]
