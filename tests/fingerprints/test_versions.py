"""lowerdeck.fingerprints.versions: the tools whose versions keys hold."""

from __future__ import annotations

import importlib.metadata
import platform
from pathlib import Path

import pytest

from lowerdeck import backends
from lowerdeck.fingerprints.versions import (
    TARGET_EXTRAS,
    environment_packages,
    lowering_versions,
    requirements,
    tool_versions,
)


def test_versions_cover_what_extras_bring() -> None:
    versions = tool_versions()
    assert {"torch", "executorch", "torchao", "ethos-u-vela", "ai-edge-litert", "python"} <= set(versions)
    assert {"numpy", "pillow", "pyarrow", "soundfile", "torchaudio", "timm", "transformers"} <= set(versions)
    assert versions["torch"] == "2.14.1"
    assert lowering_versions() == {name: versions[name] for name in ("torch", "executorch", "torchao")}


def test_what_is_not_installed_is_absent_and_extras_count_where_their_marker_holds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = ["no-such-tool>=1", "numpy[one,two]", "fifth; extra == 'ray'", "sixth; extra == 'ethos-u'"]
    requires = [
        "first; extra == 'one'",
        "second; extra == 'two' and python_version < '3'",
        "third; extra == 'other'",
        "fourth",
    ]
    monkeypatch.setattr("importlib.metadata.requires", {"numpy": requires, "lowerdeck": own}.get)
    versions = tool_versions()
    machine = {name for name in versions if "neutron" not in name.lower()}
    assert machine == {"python", "machine", "no-such-tool", "numpy", "pillow", "pyarrow", "first", "sixth"}
    assert versions["no-such-tool"] == versions["first"] == "absent"
    assert versions["numpy"] == importlib.metadata.version("numpy")
    assert versions["python"] == platform.python_version()
    assert versions["machine"] == f"{platform.system()} {platform.machine()}"


def test_installed_packages_of_the_user_count_by_their_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep took results that an older release of an installed model's package had made."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "versions_zoo").mkdir()
    (tmp_path / "versions_zoo" / "__init__.py").touch()
    info = tmp_path / "my_zoo-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-zoo\nVersion: 1.2\n")
    (info / "top_level.txt").write_text("versions_zoo\n")
    assert tool_versions(["versions_zoo", "plugins"]) == tool_versions() | {"my-zoo": "1.2"}


def test_every_extra_of_a_target_is_recorded_and_installs_something() -> None:
    extras = {backends.source(name).extra for name in backends.available()} - {None}
    assert extras == set(TARGET_EXTRAS)
    assert all(list(requirements(extra)) for extra in TARGET_EXTRAS)
    assert "ethos-u-vela" not in {requirement.name for requirement in requirements()}


@pytest.mark.parametrize("folder", ["lib/python3/dist-packages", "local/lib/python3.11/dist-packages"])
def test_packages_of_debians_interpreter_are_found(tmp_path: Path, folder: str) -> None:
    (tmp_path / folder / "eiq_neutron_sdk-3.2.0.dist-info").mkdir(parents=True)
    assert environment_packages({"python": str(tmp_path / "bin" / "python3")}) == ["eiq_neutron_sdk-3.2.0"]


def test_packages_of_another_environment_are_found_without_starting_it(tmp_path: Path) -> None:
    packages = tmp_path / "venv" / "lib" / "python3.11" / "site-packages"
    (packages / "ethos_u_vela-5.0.0.dist-info").mkdir(parents=True)
    (tmp_path / "sdk" / "eiq_neutron_sdk-3.2.0.dist-info").mkdir(parents=True)
    options = {"python": str(tmp_path / "venv" / "bin" / "python"), "sys_path": [str(tmp_path / "sdk")]}
    assert environment_packages(options) == ["eiq_neutron_sdk-3.2.0", "ethos_u_vela-5.0.0"]
    assert environment_packages({"python": None, "sys_path": [], "module": "sdk"}) == environment_packages({}) == []
