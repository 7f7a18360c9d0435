"""Lowerdeck: PyTorch models to quantized, delegated ExecuTorch programs for edge processors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lowerdeck.notebook.builds import Build, build, load
    from lowerdeck.notebook.sweeps import Sweep, sweep

__all__ = ["Build", "Sweep", "build", "load", "sweep"]
_MODULES = {"Build": "builds", "build": "builds", "load": "builds", "Sweep": "sweeps", "sweep": "sweeps"}


def __getattr__(name: str) -> Any:
    """Import what notebooks use when it is first used: no stage and no command needs it."""
    import importlib

    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # A relative name is no import to lowerdeck.fingerprints, by which every stage would depend on all code.
    return getattr(importlib.import_module(f".notebook.{_MODULES[name]}", __name__), name)
