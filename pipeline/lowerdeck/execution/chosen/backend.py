"""The backend that the configuration chooses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowerdeck.execution.resolved_config import section

if TYPE_CHECKING:
    from lowerdeck.contracts.backends import Backend


def lowering_backend() -> Backend:
    """The backend of the chosen target with its options and its converter flavor.

    Raises:
        LowerdeckError: the flavor's version differs from the configured one or is unknown.
    """
    from lowerdeck import backends
    from lowerdeck.config.flavor import flavor_of
    from lowerdeck.config.schema import FlavorConfig, TargetConfig

    target, flavor = section(TargetConfig), section(FlavorConfig)
    backend = backends.create(
        target.backend,
        device=target.device,
        options=target.options,
        flavor=flavor_of(flavor),
        fallback=target.fallback_target,
    )
    if flavor.version is not None:
        backend.converter().require_version(flavor.version)
    return backend
