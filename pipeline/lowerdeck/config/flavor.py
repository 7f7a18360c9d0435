"""Checks of the section `flavor` by its backend, and of what a build needs on this machine."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from lowerdeck import backends
from lowerdeck.config.problems import Problem, raise_problems, unknown, validate
from lowerdeck.config.schema import Config, FlavorConfig
from lowerdeck.contracts.backends import Backend, Flavor
from lowerdeck.runtime.loading import missing_device


def flavor_of(config: FlavorConfig) -> Flavor[dict[str, Any]]:
    """The chosen flavor, as an argument of `backends.create`."""
    return Flavor(name=config.name, converter=config.converter, options=config.options, timeout_s=config.timeout_s)


def check_installed(config: Config) -> None:
    """Raise ConfigurationError where the converter, what the target needs, or the GPU to evaluate on is missing.

    Only a build needs it: a configuration may be composed for reading, e.g. to explain the build of another machine. A
    sweep over targets ends with it; one over flavors leaves out those that are missing.
    """
    backend = backends.source(config.target.backend)
    options, problems = validate(backend.flavor_options_type, config.flavor.options, "flavor.options")
    raise_problems(problems)
    flavor = dataclasses.replace(flavor_of(config.flavor), options=options)
    extra, converter = backend.missing_extra(), backend.missing_converter(flavor)
    problems = [Problem("target", extra, config.target.name, is_context_free=True)] if extra else []
    problems += [Problem("flavor", converter, config.flavor.name)] if converter else []
    if missing := missing_device(config.evaluation.device):
        problems.append(Problem("evaluation.device", missing, config.evaluation.device))
    raise_problems(problems)


def completed(
    config: FlavorConfig, backend: type[Backend], plugins: Sequence[str]
) -> tuple[FlavorConfig, list[Problem]]:
    """`config`, which is for `backend`, with all of its options, and the problems with them.

    Args:
        config: The section `flavor`.
        backend: The backend that it names.
        plugins: `plugins` of params.yaml.
    """
    if config.converter not in backend.converters:
        message = f"the backend {config.backend} has no such converter"
        return config, [unknown("flavor.converter", message, config.converter, backend.converters)]
    options, problems = validate(backend.flavor_options_type, config.options, "flavor.options")
    if problems:
        return config, problems
    resolved = dataclasses.replace(config, options=dataclasses.asdict(options))
    for key, message in backend.check_flavor(dataclasses.replace(flavor_of(config), options=options), plugins):
        received: Any = resolved
        for part in key.split("."):
            received = received[part] if isinstance(received, dict) else getattr(received, part)
        problems.append(Problem(f"flavor.{key}", message, received))
    return resolved, problems
