"""`lowerdeck flavors add`: releases in environments of their own."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.workspace.flavor_environments import Release, install, release, write_option

VELA = Release(backend="ethos_u", converter="vela", package="ethos-u-vela", version="5.0.0")


@pytest.mark.parametrize("text", ["vela==5.0.0", "ethos-u-vela==5.0.0"])
def test_a_release_is_named_by_its_converter_or_package(text: str) -> None:
    assert release(text) == VELA
    assert VELA.option == "vela_5_0_0"


@pytest.mark.parametrize("text", ["vela", "vela>=5", "reference==1", "vela==5.0.0 --index-url=x", "-r==1"])
def test_anything_else_is_refused_with_what_can_be_installed(text: str) -> None:
    with pytest.raises(LowerdeckError, match=r"allowed: eiq_neutron_sdk==VERSION, vela==VERSION"):
        release(text)


def test_the_option_names_the_interpreter_and_is_never_replaced_by_another(tmp_path: Path) -> None:
    (tmp_path / "flavor").mkdir()
    path = write_option(VELA, "~/envs/vela/bin/python", tmp_path)
    assert yaml.safe_load(path.read_text()) == {
        "name": "vela_5_0_0",
        "backend": "ethos_u",
        "converter": "vela",
        "version": "5.0.0",
        "timeout_s": 600.0,
        "options": {"python": "~/envs/vela/bin/python"},
    }
    assert write_option(VELA, "~/envs/vela/bin/python", tmp_path) == path
    with pytest.raises(LowerdeckError, match="exists with other content"):
        write_option(VELA, "~/elsewhere/bin/python", tmp_path)


def test_an_environment_that_is_there_is_used_again(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").touch()
    said: list[str] = []
    assert install(VELA, tmp_path, None, said.append) == tmp_path / "bin" / "python"
    assert said == [f"{tmp_path} is there already"]


@pytest.mark.slow
def test_a_release_that_the_index_lacks_leaves_nothing_behind(tmp_path: Path) -> None:
    index = (tmp_path / "empty_index").as_uri()
    with pytest.raises(LowerdeckError, match=r"pip could not install ethos-u-vela==5\.0\.0"):
        install(VELA, tmp_path / "environment", index, lambda line: None)
    assert not (tmp_path / "environment").exists()
