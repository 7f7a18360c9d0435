"""Versions of the tools that results depend on."""

from __future__ import annotations

import importlib.metadata
import platform
from pathlib import Path

from lowerdeck.fingerprints.digests import ABSENT

LOWERING = ("torch", "executorch", "torchao")
"""Packages that turn models into programs: when one changes, reusable results are made again."""


def lowering_versions() -> dict[str, str]:
    """Installed versions of `LOWERING`."""
    return {name: importlib.metadata.version(name) for name in LOWERING}


def tool_versions(pyproject: Path) -> dict[str, str]:
    """Versions of Python, of the dependencies in pyproject.toml, and of installed Neutron converters."""
    import tomllib

    declared = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]["dependencies"]
    names = {found.name for found in importlib.metadata.distributions() if "neutron" in (found.name or "").lower()}
    for requirement in declared:
        names |= _names(requirement)
    machine = {"python": platform.python_version(), "machine": f"{platform.system()} {platform.machine()}"}
    return machine | {name: _version(name) for name in sorted(names)}


def _names(requirement: str) -> set[str]:
    """The distribution that a requirement names, and those that its extras add: Vela comes with one."""
    from packaging.requirements import Requirement

    parsed = Requirement(requirement)
    names = {parsed.name}
    for extra in parsed.extras:
        for added in map(Requirement, importlib.metadata.requires(parsed.name) or ()):
            if added.marker is not None and added.marker.evaluate({"extra": extra}):
                names.add(added.name)
    return names


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ABSENT
