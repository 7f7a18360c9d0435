"""lowerdeck.fingerprints.versions: the tools whose versions keys hold."""

from __future__ import annotations

from lowerdeck.fingerprints.versions import lowering_versions, tool_versions
from tests.project import REPOSITORY


def test_versions_cover_what_extras_bring() -> None:
    versions = tool_versions(REPOSITORY / "pyproject.toml")
    assert {"torch", "executorch", "torchao", "ethos-u-vela", "ai-edge-litert", "python"} <= set(versions)
    assert versions["torch"] == "2.14.1"
    assert lowering_versions() == {name: versions[name] for name in ("torch", "executorch", "torchao")}
