"""Models of your own: a class or function that returns an nn.Module, named by its import path.

Naming an import path in a configuration file runs that code. So only `pipeline.models.` and the packages under
`plugins` in params.yaml may be named: a configuration from elsewhere cannot reach for the rest of what is installed.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pipeline import discovery
from pipeline.contracts import ConfigurationError
from pipeline.models import checkpoints, signatures

if TYPE_CHECKING:
    import torch

OWN_PACKAGE = "pipeline.models"


@dataclass(frozen=True, kw_only=True)
class Options:
    """What may stand under `model.options`."""

    factory: str
    """Import path `package.module:attribute` of a class or function that returns an nn.Module."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments for it."""


def check(options: Options, weights: str | None, plugins: Sequence[str]) -> None:
    """Raise ConfigurationError for a value that `build` would refuse.

    The factory's source text is read. Only where that does not settle the matter (an attribute imported from elsewhere,
    a decorated function) is the module imported, with what it needs.

    Args:
        options: see Options
        weights: null, or the path of a checkpoint
        plugins: packages whose modules may be named, from params.yaml
    """
    module, attribute = _parts(options.factory)
    _check_permitted(options.factory, module, plugins)
    accepted = signatures.parameters_in_source(module, attribute)
    if accepted is None:
        accepted = signatures.parameters_of(_imported(module, attribute))
    _check_kwargs(options, accepted)
    if weights is not None:
        checkpoints.check_file(weights)


def build(options: Options, weights: str | None) -> torch.nn.Module:
    """Call the factory, load the weights; `check` is what decides whether it may be called.

    Args:
        options: see Options
        weights: null, or the path of a checkpoint

    Returns:
        torch.nn.Module: in eval mode

    Raises:
        ConfigurationError: the factory fails or returns something else, or the checkpoint does not fit.
    """
    module, attribute = _parts(options.factory)
    create = _imported(module, attribute)
    import torch

    try:
        model = create(**options.kwargs)
    except Exception as error:  # whatever a user's code raises
        raise ConfigurationError(
            f"{options.factory} called with {options.kwargs} raised {type(error).__name__}: {error}. Correct "
            "model.options.kwargs, or the factory."
        ) from error
    if not isinstance(model, torch.nn.Module):
        raise ConfigurationError(
            f"{options.factory} returned a {type(model).__name__}; it must return a torch.nn.Module. Name a class "
            "derived "
            "from it, or a function that returns an instance."
        )
    if weights is not None:
        checkpoints.load_into(model, weights)
    return model.eval()


def _parts(factory: str) -> tuple[str, str]:
    """Module and attribute of an import path."""
    if not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*", factory):
        raise ConfigurationError(
            f"model.options.factory is {factory!r}; it must be package.module:attribute, e.g. "
            "pipeline.models.networks.resnet8:ResNet8"
        )
    module, _, attribute = factory.partition(":")
    return module, attribute


def _check_permitted(factory: str, module: str, plugins: Sequence[str]) -> None:
    if any(module == package or module.startswith(f"{package}.") for package in (OWN_PACKAGE, *plugins)):
        return
    line = f"plugins: [{', '.join([*plugins, module.partition('.')[0]])}]"
    raise ConfigurationError(
        f"model.options.factory is {factory}, but building may run code of {', '.join((OWN_PACKAGE, *plugins))} only. "
        "If you "
        f"trust that package, let params.yaml say `{line}`."
    )


def _imported(module: str, attribute: str) -> Any:
    try:
        imported = importlib.import_module(module)
    except Exception as error:  # whatever a user's module raises while it is imported
        raise ConfigurationError(
            f"model.options.factory: {module} cannot be imported: {type(error).__name__}: {error}. Install it, or put "
            "the "
            "folder that holds it on PYTHONPATH."
        ) from error
    if not hasattr(imported, attribute):
        names = [name for name in vars(imported) if not name.startswith("_")]
        raise ConfigurationError(
            f"model.options.factory: {module} has no {attribute}.{discovery.did_you_mean(attribute, names)}"
        )
    created_by = getattr(imported, attribute)
    if not callable(created_by):
        raise ConfigurationError(
            f"model.options.factory: {module}:{attribute} is a {type(created_by).__name__}; name a class or a function"
        )
    return created_by


def _check_kwargs(options: Options, accepted: signatures.Parameters | None) -> None:
    if accepted is None:
        return
    unknown = [] if accepted.any_keyword else [name for name in options.kwargs if name not in accepted.keywords]
    if unknown:
        raise ConfigurationError(
            f"model.options.kwargs has {', '.join(unknown)}, which {options.factory} does not take; it takes "
            f"{', '.join(accepted.keywords) or 'no arguments'}.{discovery.did_you_mean(unknown[0], accepted.keywords)}"
        )
    missing = [name for name in accepted.required if name not in options.kwargs]
    if missing:
        raise ConfigurationError(
            f"model.options.kwargs lacks {', '.join(missing)}, which {options.factory} requires; add "
            f"{'it' if len(missing) == 1 else 'them'}"
        )
