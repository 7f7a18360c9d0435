"""lowerdeck.config.load: what a stage gets of build/config.yaml."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import yaml

from lowerdeck.config.compose import compose, render
from lowerdeck.config.load import read_config, read_section, section_name
from lowerdeck.config.schema import Config, GatesConfig, ModelConfig, TargetConfig
from lowerdeck.contracts.errors import ConfigurationError
from tests.project import Project


@pytest.fixture
def config(project: Project, monkeypatch: pytest.MonkeyPatch) -> Config:
    monkeypatch.chdir(project.root)
    return compose(Path("params.yaml"), Path("conf"))


@pytest.fixture
def written(config: Config, tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(render(config))
    return path


def test_what_was_written_is_read(config: Config, written: Path) -> None:
    assert read_config(written) == config
    for field in dataclasses.fields(Config):
        section = getattr(config, field.name)
        assert read_section(written, type(section)) == section
        assert section_name(type(section)) == field.name


def test_a_section_depends_on_itself_alone(config: Config, written: Path) -> None:
    values = yaml.safe_load(written.read_text())
    written.write_text(yaml.safe_dump({"gates": values["gates"], "target": {"colour": "red"}}))
    assert read_section(written, GatesConfig) == config.gates


def test_a_missing_file_names_the_stage_that_makes_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"config\.yaml does not exist yet; `dvc repro compose` makes it"):
        read_section(tmp_path / "config.yaml", GatesConfig)
    with pytest.raises(ConfigurationError, match=r"dvc repro compose"):
        read_config(tmp_path / "config.yaml")


def test_a_section_that_is_not_there_is_said(written: Path) -> None:
    values = yaml.safe_load(written.read_text())
    del values["gates"]
    written.write_text(yaml.safe_dump(values))
    with pytest.raises(ConfigurationError, match="gates"):
        read_section(written, GatesConfig)
    with pytest.raises(ConfigurationError, match="gates: is missing"):
        read_config(written)


@pytest.mark.parametrize("text", ["- a\n", "", "hello", "target: [\n", "\x00"])
def test_a_file_that_is_no_configuration_is_refused(written: Path, text: str) -> None:
    written.write_text(text)
    with pytest.raises(ConfigurationError, match=r"dvc repro -f compose"):
        read_section(written, GatesConfig)


def test_an_edit_by_hand_is_checked_as_everything_else(written: Path) -> None:
    values = yaml.safe_load(written.read_text())
    values["gates"] |= {"min_delegated_share": "0.5", "colour": "red"}
    values["target"]["backend"] = None
    written.write_text(yaml.safe_dump(values))
    with pytest.raises(ConfigurationError) as caught:
        read_section(written, GatesConfig)
    assert "gates.min_delegated_share: " in str(caught.value)
    assert "gates.colour: there is no such key" in str(caught.value)
    with pytest.raises(ConfigurationError, match=r"target\.backend: has to be a valid string"):
        read_section(written, TargetConfig)
    assert read_section(written, ModelConfig).name == "resnet8"
    with pytest.raises(ConfigurationError, match="3 problems"):
        read_config(written)
