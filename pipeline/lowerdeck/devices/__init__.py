"""Where programs are executed: every module here with `Options`, `describe` and `execute` is a kind of device.

See contracts.devices.DeviceModule. To add one, write a module here, or in a package that params.yaml lists under
`plugins`, and a YAML in conf/device. Other modules are helpers: `compatibility` (what a program requires and a runtime
offers), `images` (descriptions of runtimes), `locks` (hardware for one user at a time), `processes` (child processes
with a time limit), `tensors` (tensors in a device's memory), `wheel_runner` (executes a program where ExecuTorch's
wheel is installed).
"""

from __future__ import annotations

from typing import cast

from lowerdeck.contracts.devices import DeviceModule
from lowerdeck.registry import components

DEFINES = frozenset({"Options", "describe", "execute"})
"""What a kind of device defines at its top level."""


def available() -> tuple[str, ...]:
    """Values of `device.kind` that this package has, sorted; found without importing the modules."""
    return components.modules_defining(__path__[0], DEFINES)


def source(kind: str) -> DeviceModule:
    """The module of a kind of device: one of this package, or one of yours by its full name, e.g. `plugins.my_board`.

    Raises:
        ConfigurationError: it does not exist.
    """
    return cast(DeviceModule, components.load(__name__, __path__[0], kind, DEFINES, "kind of device"))
