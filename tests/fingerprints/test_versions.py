"""lowerdeck.fingerprints.versions: the tools whose versions keys hold."""

from __future__ import annotations

import importlib.metadata
import platform
from pathlib import Path

import pytest

from lowerdeck.fingerprints.versions import lowering_versions, tool_versions
from tests.project import REPOSITORY


def test_versions_cover_what_extras_bring() -> None:
    versions = tool_versions(REPOSITORY / "pyproject.toml")
    assert {"torch", "executorch", "torchao", "ethos-u-vela", "ai-edge-litert", "python"} <= set(versions)
    assert versions["torch"] == "2.14.1"
    assert lowering_versions() == {name: versions[name] for name in ("torch", "executorch", "torchao")}


def test_what_is_not_installed_is_absent_and_extras_count_where_their_marker_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pyproject = tmp_path / "pyproject.toml"
    pyproject.write_text('[project]\ndependencies = ["no-such-tool>=1", "numpy[one,two]"]\n')
    requires = [
        "first; extra == 'one'",
        "second; extra == 'two' and python_version < '3'",
        "third; extra == 'other'",
        "fourth",
    ]
    monkeypatch.setattr("importlib.metadata.requires", lambda name: requires if name == "numpy" else None)
    versions = tool_versions(pyproject)
    machine = {name for name in versions if "neutron" not in name.lower()}
    assert machine == {"python", "machine", "no-such-tool", "numpy", "first"}
    assert versions["no-such-tool"] == versions["first"] == "absent"
    assert versions["numpy"] == importlib.metadata.version("numpy")
    assert versions["python"] == platform.python_version()
    assert versions["machine"] == f"{platform.system()} {platform.machine()}"
