"""The targets of the reference flavor, under the names of the eIQ Neutron SDK's module."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class NeutronTarget:
    """The properties of a target that ExecuTorch's backend reads, under the SDK's attribute names."""

    name: str
    subsystem: bool
    """True for Neutron-S (application processors), False for Neutron-C (microcontrollers)."""
    numUnits: int
    numPipes: int
    numMacs: int
    hwVersion: int
    """As in ExecuTorch's NeutronHWVersion: 1 is N1, 2 is N3."""


# i.MX RT700 has a Neutron N3-64 without subsystem (Neutron-C). numMacs is 8 because the backend's documentation needs
# channels in multiples of 8; it is the only one of the three numbers that ExecuTorch 1.5.1 reads (a convolution needs
# kernel height x width x input channels rounded up to numMacs <= 65535). No source for units and pipes was found: one
# unit of 8 pipes is inferred from the name, interpreting the 64 of N3-64 as multiply-accumulates per cycle, 1 x 8 x 8.
# NXP's own target object may have other values.
_TARGETS = (NeutronTarget(name="imxrt700", subsystem=False, numUnits=1, numPipes=8, numMacs=8, hwVersion=2),)


def getNeutronTargets() -> list[NeutronTarget]:
    """Return all targets."""
    return list(_TARGETS)


def isNeutronTarget(name: str) -> bool:
    """Whether there is a target `name`."""
    return any(target.name == name for target in _TARGETS)
