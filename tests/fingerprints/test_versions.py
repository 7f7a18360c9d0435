"""lowerdeck.fingerprints.versions: the tools whose versions keys hold."""

from __future__ import annotations

import importlib.metadata
import platform

import pytest

from lowerdeck.fingerprints.versions import lowering_versions, tool_versions


def test_versions_cover_what_extras_bring() -> None:
    versions = tool_versions()
    assert {"torch", "executorch", "torchao", "ethos-u-vela", "ai-edge-litert", "python"} <= set(versions)
    assert versions["torch"] == "2.14.1"
    assert lowering_versions() == {name: versions[name] for name in ("torch", "executorch", "torchao")}


def test_what_is_not_installed_is_absent_and_extras_count_where_their_marker_holds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = ["no-such-tool>=1", "numpy[one,two]", "fifth; extra == 'ray'"]
    requires = [
        "first; extra == 'one'",
        "second; extra == 'two' and python_version < '3'",
        "third; extra == 'other'",
        "fourth",
    ]
    monkeypatch.setattr("importlib.metadata.requires", {"numpy": requires, "lowerdeck": own}.get)
    versions = tool_versions()
    machine = {name for name in versions if "neutron" not in name.lower()}
    assert machine == {"python", "machine", "no-such-tool", "numpy", "first"}
    assert versions["no-such-tool"] == versions["first"] == "absent"
    assert versions["numpy"] == importlib.metadata.version("numpy")
    assert versions["python"] == platform.python_version()
    assert versions["machine"] == f"{platform.system()} {platform.machine()}"
