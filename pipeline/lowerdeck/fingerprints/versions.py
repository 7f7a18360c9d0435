"""Versions of the tools that results depend on."""

from __future__ import annotations

import importlib.metadata
import platform
from typing import TYPE_CHECKING

from lowerdeck.fingerprints.digests import ABSENT

if TYPE_CHECKING:
    from packaging.requirements import Requirement

LOWERING = ("torch", "executorch", "torchao")
"""Packages that turn models into programs: when one changes, reusable results are made again."""


def lowering_versions() -> dict[str, str]:
    """Installed versions of `LOWERING`."""
    return {name: importlib.metadata.version(name) for name in LOWERING}


def tool_versions() -> dict[str, str]:
    """Versions of Python, of the dependencies of this package, and of installed Neutron converters."""
    from packaging.requirements import Requirement

    names = {found.name for found in importlib.metadata.distributions() if "neutron" in (found.name or "").lower()}
    for requirement in map(Requirement, importlib.metadata.requires("lowerdeck") or ()):
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            names |= _names(requirement)
    machine = {"python": platform.python_version(), "machine": f"{platform.system()} {platform.machine()}"}
    return machine | {name: _version(name) for name in sorted(names)}


def _names(requirement: Requirement) -> set[str]:
    """The distribution that a requirement names, and those that its extras add: Vela comes with one."""
    names = {requirement.name}
    for extra in requirement.extras:
        for added in map(type(requirement), importlib.metadata.requires(requirement.name) or ()):
            if added.marker is not None and added.marker.evaluate({"extra": extra}):
                names.add(added.name)
    return names


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ABSENT
