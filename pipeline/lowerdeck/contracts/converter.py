"""The converter build that turns partitions into device code."""

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
    """Version that the product reports."""
    host_only: bool = False
    """Whether its output executes on the host only, not on the device."""
    target: Mapping[str, Any] = field(default_factory=dict)
    """Properties of the device that the converter reports and the partitioner uses; may be empty."""

    @classmethod
    def of_package(
        cls, package: str, *, flavor: str, name: str | None = None, requirement: str | None = None
    ) -> Converter:
        """Describe the converter in an installed Python package, whose version it has.

        Args:
            package: Name of the package.
            flavor: Name of the chosen conf/flavor option.
            name: Name of the converter; `package` by default.
            requirement: Requirement for pip that installs the package; `package` by default.

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
        """Return this converter if `version` is None or equals its version.

        Raises:
            LowerdeckError: the versions differ.
        """
        if version is None or version == self.version:
            return self
        raise LowerdeckError(
            f"Flavor {self.flavor} is configured for version {version} (flavor.version), but its {self.name} has "
            f"version {self.version}. Install the configured release, choose the flavor that has it, or change "
            "`flavor.version`."
        )

    @property
    def caveat(self) -> str | None:
        """Warning that every table, tag and page shows next to results of this converter, if any."""
        return f"{self.flavor} flavor: runs on the host only, not on the NPU" if self.host_only else None
