"""The section `flavor` held against what its backend declares."""

from __future__ import annotations

import dataclasses
from typing import Any

from lowerdeck.config.problems import Problem, validate
from lowerdeck.config.schema import FlavorConfig
from lowerdeck.contracts.backends import BackendDeclaration


def completed(config: FlavorConfig, declaration: BackendDeclaration) -> tuple[FlavorConfig, list[Problem]]:
    """`config` with all of its options, and what is wrong with them.

    Args:
        config: Of a flavor for the backend of `declaration`.
        declaration: What that backend declares.
    """
    if config.converter not in declaration.converters:
        problem = Problem(
            key="flavor.converter",
            message=f"the backend {config.backend} has no such converter",
            received=config.converter,
            allowed=declaration.converters,
            suggest_for=config.converter,
        )
        return config, [problem]
    options, problems = validate(declaration.flavor_options, config.options, "flavor.options")
    if problems:
        return config, problems
    resolved = dataclasses.replace(config, options=dataclasses.asdict(options))
    for key, message in declaration.check_flavor(config.converter, options):
        received: Any = resolved
        for part in key.split("."):
            received = received[part] if isinstance(received, dict) else getattr(received, part)
        problems.append(Problem(key=f"flavor.{key}", message=message, received=received))
    return resolved, problems
