"""`target.fallback`: the kernel library beneath an NPU, by the name of its own target."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from lowerdeck import backends
from lowerdeck.config.options import option_file, option_names
from lowerdeck.config.problems import Problem, unknown, validate
from lowerdeck.config.schema import TargetConfig
from lowerdeck.config.yaml_text import read_mapping
from lowerdeck.contracts.backends import Backend
from lowerdeck.contracts.errors import LowerdeckError

_KEY = "target.fallback"


def fallback(target: TargetConfig, backend: type[Backend], conf_dir: Path) -> tuple[Backend | None, list[Problem]]:
    """The kernel library that `target` names, and what is wrong with the choice.

    Args:
        target: The target.
        backend: Its backend.
        conf_dir: The folder conf.
    """
    if target.fallback_target is not None:
        message = "cannot be set: compose writes it; choose `target.fallback`"
        return None, [Problem("target.fallback_target", message, target.fallback_target)]
    if target.fallback is None:
        return None, []
    libraries = {name: found for name in option_names("target", conf_dir) if (found := _library(name, conf_dir))}
    if not backend.accepts_fallback:
        message = f"is for an NPU that leaves operators to the CPU, and {target.backend} is none; leave it out"
        return None, [Problem(_KEY, message, target.fallback)]
    if target.fallback not in libraries:
        message = "must be the conf/target option of a kernel library"
        return None, [unknown(_KEY, message, target.fallback, list(libraries))]
    library, values = libraries[target.fallback]
    device, problems = validate(library.device_type, values, f"conf/target/{target.fallback}.yaml: device")
    return (None if problems else library(device=device, options=library.options_type())), problems


def fallback_target(library: Backend | None) -> dict[str, Any] | None:
    """`target.fallback_target`: what stages need to know of the library."""
    return None if library is None else {"backend": library.name, "device": asdict(library.device)}


def _library(name: str, conf_dir: Path) -> tuple[type[Backend], dict[str, Any]] | None:
    """The backend and the device of the target `name`, if it is a kernel library's."""
    try:
        values = read_mapping(option_file("target", name, conf_dir))
    except LowerdeckError:
        return None  # a file that this build does not use; whoever chooses the option reads its errors
    known = values.get("backend") in backends.available()
    backend = backends.source(values["backend"]) if known else None
    return (backend, dict(values.get("device") or {})) if backend is not None and backend.is_kernel_library else None
