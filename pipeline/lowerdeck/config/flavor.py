"""The section `flavor`, checked by its backend."""

from __future__ import annotations

import dataclasses
from typing import Any

from lowerdeck.config.problems import Problem, validate
from lowerdeck.config.schema import FlavorConfig
from lowerdeck.contracts.backends import Backend, Flavor


def flavor_of(config: FlavorConfig) -> Flavor[dict[str, Any]]:
    """The chosen flavor as `backends.create` takes it."""
    return Flavor(name=config.name, converter=config.converter, options=config.options, timeout_s=config.timeout_s)


def completed(config: FlavorConfig, backend: type[Backend]) -> tuple[FlavorConfig, list[Problem]]:
    """`config` with all of its options, and what is wrong with them.

    Args:
        config: Of a flavor for `backend`.
        backend: Class of the backend.
    """
    if config.converter not in backend.converters:
        problem = Problem(
            key="flavor.converter",
            message=f"the backend {config.backend} has no such converter",
            received=config.converter,
            allowed=backend.converters,
            suggest_for=config.converter,
        )
        return config, [problem]
    options, problems = validate(backend.flavor_options_type, config.options, "flavor.options")
    if problems:
        return config, problems
    resolved = dataclasses.replace(config, options=dataclasses.asdict(options))
    for key, message in backend.check_flavor(dataclasses.replace(flavor_of(config), options=options)):
        received: Any = resolved
        for part in key.split("."):
            received = received[part] if isinstance(received, dict) else getattr(received, part)
        problems.append(Problem(key=f"flavor.{key}", message=message, received=received))
    return resolved, problems
