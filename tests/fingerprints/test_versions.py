"""lowerdeck.fingerprints.versions: the tools whose versions keys hold."""

from __future__ import annotations

import importlib.metadata
import platform

import pytest

from lowerdeck import backends
from lowerdeck.fingerprints.versions import TARGET_EXTRAS, lowering_versions, requirements, tool_versions


def test_versions_cover_what_extras_bring() -> None:
    versions = tool_versions()
    assert {"torch", "executorch", "torchao", "ethos-u-vela", "ai-edge-litert", "python"} <= set(versions)
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
    assert machine == {"python", "machine", "no-such-tool", "numpy", "first", "sixth"}
    assert versions["no-such-tool"] == versions["first"] == "absent"
    assert versions["numpy"] == importlib.metadata.version("numpy")
    assert versions["python"] == platform.python_version()
    assert versions["machine"] == f"{platform.system()} {platform.machine()}"


def test_every_extra_of_a_target_is_recorded_and_installs_something() -> None:
    extras = {backends.source(name).extra for name in backends.available()} - {None}
    assert extras == set(TARGET_EXTRAS)
    assert all(list(requirements(extra)) for extra in TARGET_EXTRAS)
    assert "ethos-u-vela" not in {requirement.name for requirement in requirements()}
