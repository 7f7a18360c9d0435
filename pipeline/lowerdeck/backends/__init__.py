"""Backends by name: every folder here is one, with its BackendDeclaration as `DECLARATION` in its `__init__.py`."""

from __future__ import annotations

import dataclasses
import importlib
import json
import pkgutil
from typing import Any

from lowerdeck.contracts.backends import Backend, BackendDeclaration, FlavorReport


def available() -> tuple[str, ...]:
    """Names of the backends that this version has."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__) if module.ispkg))


def source(name: str) -> BackendDeclaration:
    """What the backend `name` declares; imports nothing of ExecuTorch."""
    declaration = importlib.import_module(f"{__name__}.{name}").DECLARATION
    assert isinstance(declaration, BackendDeclaration)
    return declaration


def create(
    name: str,
    *,
    device: dict[str, Any],
    options: dict[str, Any] | None = None,
    flavor_options: dict[str, Any] | None = None,
    **flavor: Any,
) -> Backend:
    """The backend `name`.

    Args:
        name: A folder of pipeline/lowerdeck/backends.
        device: `target.device` of the resolved configuration.
        options: `target.options`; not needed for the quantizer.
        flavor_options: `flavor.options`; not needed for the quantizer.
        flavor: `flavor` (its name), `converter_name` and `timeout_s`; not needed for the quantizer.
    """
    declaration = source(name)
    chosen = {"device": _read(declaration.device, device)}
    if options is not None:
        chosen["options"] = _read(declaration.options, options)
    if flavor_options is not None and dataclasses.fields(declaration.flavor_options):
        chosen["flavor_options"] = _read(declaration.flavor_options, flavor_options)
    return declaration.create(**chosen, **flavor)


def probe(name: str, *, flavor_options: dict[str, Any], **flavor: Any) -> FlavorReport:
    """Ask a converter for its version and what it can do; nothing heavy is imported.

    Args:
        name: A folder of pipeline/lowerdeck/backends.
        flavor_options: `flavor.options`.
        flavor: `flavor` (its name), `converter_name` and `timeout_s`.

    Raises:
        LowerdeckError: it cannot be used; says what is missing and how to fix it.
    """
    declaration = source(name)
    return declaration.probe_flavor(flavor_options=_read(declaration.flavor_options, flavor_options), **flavor)


def _read(schema: type, values: dict[str, Any]) -> Any:
    # Not above: the reference converter, a process for each partition, imports this module and has no need of it.
    from pydantic import TypeAdapter

    # By way of JSON: in strict mode pydantic takes mappings for dataclasses there only.
    return TypeAdapter(schema).validate_json(json.dumps(values))
