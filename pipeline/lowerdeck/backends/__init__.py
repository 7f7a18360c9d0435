"""Backends by name: every folder here with a `backend.py` is one; that module defines one subclass of Backend."""

from __future__ import annotations

import dataclasses
import importlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lowerdeck.contracts.backends import Backend, Flavor, FlavorReport

Values = dict[str, Any]
"""Plain values of a configuration section."""


def available() -> tuple[str, ...]:
    """Return the names of all backends."""
    return tuple(sorted(path.parent.name for path in Path(__path__[0]).glob("*/backend.py")))


def source(name: str) -> type[Backend]:
    """Return the class of the backend `name`, without importing ExecuTorch."""
    from lowerdeck.contracts.backends import Backend

    module = importlib.import_module(f"{__name__}.{name}.backend")
    (found,) = (
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Backend) and value.__module__ == module.__name__
    )
    return found


def create(
    name: str,
    *,
    device: Values,
    options: Values | None = None,
    flavor: Flavor[Values] | None = None,
    fallback: Values | None = None,
) -> Backend:
    """Create the backend `name` from values of the resolved configuration, and validate them.

    Args:
        name: A folder of pipeline/lowerdeck/backends.
        device: `target.device`.
        options: `target.options`; not needed for the quantizer.
        flavor: The section `flavor`; not needed for the quantizer.
        fallback: `target.fallback_target`: backend and device of the kernel library beneath it.
    """
    backend = source(name)
    library = None if fallback is None else create(fallback["backend"], device=fallback["device"], options={})
    return backend(
        fallback=library,
        device=_read(backend.device_type, device),
        options=None if options is None else _read(backend.options_type, options),
        flavor=None if flavor is None else _flavor(backend, flavor),
    )


def probe(name: str, flavor: Flavor[Values]) -> FlavorReport:
    """Ask the converter of `flavor` for its version and capabilities, without slow imports.

    Raises:
        LowerdeckError: the converter cannot be used; the message names what is missing and how to fix it.
    """
    backend = source(name)
    return backend.probe_flavor(_flavor(backend, flavor))


def _flavor(backend: type[Backend], flavor: Flavor[Values]) -> Flavor[Any]:
    return dataclasses.replace(flavor, options=_read(backend.flavor_options_type, flavor.options))


def _read(schema: type, values: Values) -> Any:
    # Imported here, because the process of the reference converter imports this module without using pydantic.
    from pydantic import TypeAdapter

    # In strict mode pydantic converts mappings to dataclasses only from JSON.
    return TypeAdapter(schema).validate_json(json.dumps(values))
