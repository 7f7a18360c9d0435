"""Versions of the tools that results depend on."""

from __future__ import annotations

import importlib.metadata
import platform
from typing import TYPE_CHECKING, Any

from lowerdeck.fingerprints.digests import ABSENT
from lowerdeck.registry.interpreters import expanded

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from packaging.requirements import Requirement

TARGET_EXTRAS = ("cortex-m", "ethos-u", "neutron")
"""Extras of this package that targets need, see contracts.backends.Backend.extra."""
_SOURCE_EXTRAS = ("audio", "timm", "transformers")
"""Extras that models and datasets come from."""
_BROUGHT = ("numpy", "pillow", "pyarrow")
"""Packages that read samples, and that dependencies bring."""
LOWERING = ("torch", "executorch", "torchao")
"""Packages that turn models into programs: when one changes, reusable results are made again."""


def lowering_versions() -> dict[str, str]:
    """Installed versions of `LOWERING`."""
    return {name: importlib.metadata.version(name) for name in LOWERING}


def tool_versions(installed: Collection[str] = ()) -> dict[str, str]:
    """Versions of Python, of what this package and its extras depend on, and of installed Neutron converters.

    Args:
        installed: Top-level packages of which the versions count, too.
    """
    names = {found.name for found in importlib.metadata.distributions() if "neutron" in (found.name or "").lower()}
    extras = ("", *TARGET_EXTRAS, *_SOURCE_EXTRAS)
    names |= {requirement.name for extra in extras for requirement in requirements(extra)}
    names.update(_BROUGHT)
    if installed:  # finding their names takes half a second
        owners = importlib.metadata.packages_distributions()
        names.update(owner for package in installed for owner in owners.get(package, ()))
    machine = {"python": platform.python_version(), "machine": f"{platform.system()} {platform.machine()}"}
    return machine | {name: _version(name) for name in sorted(names)}


def environment_packages(options: Mapping[str, Any]) -> list[str]:
    """Packages with their versions where a flavor finds its converter, beside the environment of this process.

    Args:
        options: A flavor's options. `python` names an interpreter, `sys_path` folders of packages.
    """
    places = [expanded(folder) for folder in options.get("sys_path") or ()]
    if python := options.get("python"):
        prefix = expanded(python).parent.parent
        # Debian's own interpreter has its packages in dist-packages, and those that pip installs below local/.
        places += [*prefix.glob("lib/python3*/*-packages"), *prefix.glob("local/lib/python3*/*-packages")]
    return sorted(info.stem for place in places for info in place.glob("*.dist-info"))


def requirements(extra: str = "", package: str = "lowerdeck") -> Iterator[Requirement]:
    """The dependencies that an extra of `package` adds, or without one those that it always has.

    Those that extras of a dependency bring follow it: Vela comes with executorch[ethos-u].
    """
    from packaging.requirements import Requirement

    try:
        lines = importlib.metadata.requires(package) or ()
    except importlib.metadata.PackageNotFoundError:
        return
    for requirement in map(Requirement, lines):
        marker = requirement.marker
        always = marker is None or marker.evaluate({"extra": ""})
        if always if not extra else not always and marker is not None and marker.evaluate({"extra": extra}):
            yield requirement
            for inner in sorted(requirement.extras):
                yield from requirements(inner, requirement.name)


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ABSENT
