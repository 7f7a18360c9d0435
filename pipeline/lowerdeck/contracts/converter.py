"""The converter release that turns partitions into device code."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lowerdeck.contracts.errors import LowerdeckError


@dataclass(frozen=True, kw_only=True)
class Converter:
    """The converter build that turns partitions into device code."""

    flavor: str
    """Name of the chosen conf/flavor option."""
    name: str
    """Product, e.g. `ethos-u-vela`."""
    version: str
    """Version as the product itself states it."""
    host_only: bool = False
    """True where its output cannot execute on the device."""
    target: Mapping[str, Any] = field(default_factory=dict)
    """Properties of the device as the converter states them, where it does: those that partitioning went by."""

    @classmethod
    def of_package(
        cls, package: str, *, flavor: str, name: str | None = None, requirement: str | None = None
    ) -> Converter:
        """The converter in an installed Python package, whose version it has.

        Args:
            package: Name of the package.
            flavor: Name of the chosen conf/flavor option.
            name: Of the converter, None where that is the package's.
            requirement: What pip installs to get the package, None for the package itself.

        Raises:
            LowerdeckError: the package is not installed.
        """
        try:
            version = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            raise LowerdeckError(
                f"the Python package {package} is not installed in this environment; "
                f"`pip install '{requirement or package}'` installs it"
            ) from None
        return cls(flavor=flavor, name=name or package, version=version)

    def require_version(self, version: str | None) -> Converter:
        """This converter, which has to be of `version` unless that is None.

        Raises:
            LowerdeckError: it is of another.
        """
        if version is None or version == self.version:
            return self
        raise LowerdeckError(
            f"Flavor {self.flavor} is configured for version {version} (flavor.version), and {self.name} is of version "
            f"{self.version} there. Install the configured release, choose the flavor that has it, or change "
            "`flavor.version`."
        )

    @property
    def caveat(self) -> str | None:
        """What every table, tag and page has to say beside results of this converter, if anything."""
        return f"{self.flavor} flavor: runs on the host only, not on the NPU" if self.host_only else None
