"""The converter release that turns partitions into device code."""

from __future__ import annotations

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
