"""Your own models: a class or function that returns an nn.Module, named by its import path.

Allowed are paths in `lowerdeck.models.` and in the packages under `plugins` in params.yaml (import_paths.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lowerdeck.contracts.errors import ConfigurationError
from lowerdeck.models import checkpoints
from lowerdeck.registry import components, import_paths, signatures

if TYPE_CHECKING:
    import torch

OWN_PACKAGE = __name__.rpartition(".")[0]
_KEY = "model.options.factory"
_LAZY = (
    "whose {} have no shape yet, as lazy layers have none before their first call. Call the model once in the "
    "factory, before it returns it: model.eval()(torch.zeros(SHAPE))"
)
_SPARSE = (
    "with sparse parameters or buffers: {}. Programs have dense tensors only: register them in __init__ by "
    "`.to_dense()`"
)
_ELSEWHERE = (
    "with parameters or buffers on other devices than the CPU: {}. Let the factory build the model on the CPU; on the "
    "device meta, tensors have no values"
)
_EXAMPLE = "lowerdeck.models.networks.resnet8:ResNet8"


@dataclass(frozen=True, kw_only=True)
class Options:
    """Keys of `model.options`."""

    factory: str
    """Import path `package.module:attribute` of a class or function that returns an nn.Module."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the factory."""


def check(options: Options, weights: str | None, plugins: Sequence[str]) -> None:
    """Raise ConfigurationError for a value that `build` would refuse.

    Reads the factory's source text. The module and its dependencies are imported only if that is not enough, e.g. for
    a decorated function or an attribute imported from elsewhere.

    Args:
        options: see Options
        weights: null, or the path of a checkpoint
        plugins: packages with permitted modules, from params.yaml
    """
    import_paths.split_import_path(options.factory, _KEY, _EXAMPLE)
    import_paths.check_permitted(options.factory, _KEY, OWN_PACKAGE, plugins)
    accepted = import_paths.parameters(options.factory, _KEY)
    _check_kwargs(options, accepted)
    if weights is not None:
        checkpoints.check_file(weights)


def build(options: Options, weights: str | None) -> torch.nn.Module:
    """Call the factory and load the weights; `check` decides whether it may be called.

    Args:
        options: see Options
        weights: null, or the path of a checkpoint

    Returns:
        torch.nn.Module: in eval mode

    Raises:
        ConfigurationError: the factory fails or returns something else, its module is lazy, sparse, not on the CPU or
            refuses eval(), or the checkpoint does not fit.
    """
    import_paths.split_import_path(options.factory, _KEY, _EXAMPLE)
    create = import_paths.import_callable(options.factory, _KEY)
    import torch

    from lowerdeck.graph.gpu_errors import described_gpu_error

    try:
        model = create(**options.kwargs)
    except Exception as error:  # whatever a user's code raises
        raised = described_gpu_error(error) or (
            f"{type(error).__name__}: {error}. Correct model.options.kwargs, or the factory."
        )
        raise ConfigurationError(f"{options.factory} called with {options.kwargs} raised {raised}") from error
    if not isinstance(model, torch.nn.Module):
        raise ConfigurationError(
            f"{options.factory} returned a {type(model).__name__}; it must return a torch.nn.Module. Name a class "
            "derived from it, or a function that returns an instance."
        )
    _check_tensors(options, model)
    if weights is not None:
        checkpoints.load_into(model, weights)
    try:
        model.eval()
    except Exception as error:  # whatever a user's code raises
        raise ConfigurationError(
            f"{options.factory} returned a {type(model).__name__} whose eval() raised {type(error).__name__}: {error}. "
            "A program computes what the model does in eval mode: let eval() succeed, e.g. by calling super().train()"
        ) from error
    if model.training:
        raise ConfigurationError(
            f"{options.factory} returned a {type(model).__name__} whose eval() leaves it in training mode. A program "
            "computes what the model does in eval mode: remove its eval(), or let its train(mode) call "
            "super().train(mode)"
        )
    return model


def _check_tensors(options: Options, model: torch.nn.Module) -> None:
    """Neither weights nor torch.export take lazy layers before their first call, sparse tensors, or other devices."""
    import torch
    from torch.nn.parameter import is_lazy

    named = (*model.named_parameters(), *model.named_buffers())
    lazy = [name for name, value in named if is_lazy(value)]
    sparse = [name for name, value in named if not is_lazy(value) and value.layout is not torch.strided]
    elsewhere = [f"{name} ({value.device})" for name, value in named if value.device.type != "cpu"]
    for names, reason in ((lazy, _LAZY), (sparse, _SPARSE), (elsewhere, _ELSEWHERE)):
        if names:
            found = reason.format(", ".join(names[:3]))
            raise ConfigurationError(f"{options.factory} returned a {type(model).__name__} {found}")


def _check_kwargs(options: Options, accepted: signatures.Parameters | None) -> None:
    if accepted is None:
        return
    unknown = [] if accepted.any_keyword else [name for name in options.kwargs if name not in accepted.keywords]
    if unknown:
        raise ConfigurationError(
            f"model.options.kwargs has {', '.join(unknown)}, which {options.factory} does not accept; it accepts "
            f"{', '.join(accepted.keywords) or 'no arguments'}.{components.did_you_mean(unknown[0], accepted.keywords)}"
        )
    missing = [name for name in accepted.required if name not in options.kwargs]
    if missing:
        raise ConfigurationError(
            f"model.options.kwargs lacks {', '.join(missing)}, which {options.factory} requires; add "
            f"{'it' if len(missing) == 1 else 'them'}"
        )


def class_names(options: Options, weights: str | None) -> tuple[str, ...]:
    """Those in the metadata of the weights."""
    return checkpoints.class_names(weights)
