"""Where programs are executed: every module here with `Options`, `describe` and `execute` is a kind of device.

See contracts.devices.DeviceModule. To add one, write a module here, or in a package that params.yaml lists under
`plugins`, and a YAML in conf/device. Other modules are helpers: `compatibility` (what a program requires and a runtime
offers), `images` (descriptions of runtimes), `locks` (hardware for one user at a time), `processes` (child processes
with a time limit), `tensors` (tensors in a device's memory), `wheel_runner` (executes a program where ExecuTorch's
wheel is installed).
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import cast

from lowerdeck.contracts.devices import DeviceModule
from lowerdeck.contracts.errors import ConfigurationError
from lowerdeck.registry import components, import_paths

_NAMES = ("Options", "describe", "execute")


def available() -> tuple[str, ...]:
    """Values of `device.kind` that this package has, sorted; found without importing the modules."""
    return components.modules_defining(__path__[0], frozenset(_NAMES))


def source(kind: str, plugins: Sequence[str] = ()) -> DeviceModule:
    """The module of a kind of device.

    Args:
        kind: A module of this package, or one of yours by its full name, e.g. `plugins.my_board`.
        plugins: Import prefixes outside the project that configuration may name.

    Raises:
        ConfigurationError: it does not exist, `plugins` does not allow it, or it lacks a part of the interface.
    """
    if "." not in kind:
        return cast(DeviceModule, components.load(__name__, kind, available(), "kind of device"))
    import_paths.check_permitted(kind, "device.kind", __name__, plugins)
    try:
        found = importlib.import_module(kind)
    except Exception as error:  # importing a user's module may raise anything
        raise ConfigurationError(
            f"device.kind: {kind} cannot be imported: {type(error).__name__}: {error}. Install it, or put the folder "
            "that holds it on PYTHONPATH."
        ) from error
    if lacking := [name for name in _NAMES if not hasattr(found, name)]:
        raise ConfigurationError(
            f"device.kind: {kind} lacks {', '.join(lacking)}; a module of a device defines {', '.join(_NAMES)}"
        )
    return cast(DeviceModule, found)
