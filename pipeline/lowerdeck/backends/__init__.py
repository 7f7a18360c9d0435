"""Backends by name: every folder here with a `backend.py` is one, and that module defines its one Backend class."""

from __future__ import annotations

import dataclasses
import importlib
import json
from pathlib import Path
from typing import Any

from lowerdeck.contracts.backends import Backend, Flavor, FlavorReport

Values = dict[str, Any]
"""Plain values of a section of the resolved configuration."""


def available() -> tuple[str, ...]:
    """Names of the backends that this version has."""
    return tuple(sorted(path.parent.name for path in Path(__path__[0]).glob("*/backend.py")))


def source(name: str) -> type[Backend]:
    """The class of the backend `name`; imports nothing of ExecuTorch."""
    module = importlib.import_module(f"{__name__}.{name}.backend")
    (found,) = (
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Backend) and value.__module__ == module.__name__
    )
    return found


def create(
    name: str, *, device: Values, options: Values | None = None, flavor: Flavor[Values] | None = None
) -> Backend:
    """The backend `name` with values of the resolved configuration, which are validated here.

    Args:
        name: A folder of pipeline/lowerdeck/backends.
        device: `target.device`.
        options: `target.options`; not needed for the quantizer.
        flavor: The section `flavor`; not needed for the quantizer.
    """
    backend = source(name)
    return backend(
        device=_read(backend.device_type, device),
        options=None if options is None else _read(backend.options_type, options),
        flavor=None if flavor is None else _flavor(backend, flavor),
    )


def probe(name: str, flavor: Flavor[Values]) -> FlavorReport:
    """Ask the converter that `flavor` names for its version and what it can do; nothing heavy is imported.

    Raises:
        LowerdeckError: it cannot be used; says what is missing and how to fix it.
    """
    backend = source(name)
    return backend.probe_flavor(_flavor(backend, flavor))


def _flavor(backend: type[Backend], flavor: Flavor[Values]) -> Flavor[Any]:
    return dataclasses.replace(flavor, options=_read(backend.flavor_options_type, flavor.options))


def _read(schema: type, values: Values) -> Any:
    # Not above: the reference converter, a process for each partition, imports this module and has no need of it.
    from pydantic import TypeAdapter

    # By way of JSON: in strict mode pydantic takes mappings for dataclasses there only.
    return TypeAdapter(schema).validate_json(json.dumps(values))
