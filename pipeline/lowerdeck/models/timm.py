"""Models of timm by name, with random weights or those of a local file; `pip install lowerdeck[timm]`."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lowerdeck.contracts.errors import ConfigurationError
from lowerdeck.models import checkpoints, random_weights
from lowerdeck.registry import components

if TYPE_CHECKING:
    import torch

PRETRAINED = "pretrained"


@dataclass(frozen=True, kw_only=True)
class Options:
    """Keys of `model.options`."""

    architecture: str
    """Name of the model, e.g. vit_tiny_patch16_224."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of timm.create_model, e.g. {num_classes: 10, img_size: 64}."""


def check(options: Options, weights: str | None, plugins: Sequence[str]) -> None:
    """Raise ConfigurationError unless timm is installed and the weights are null, `pretrained` or a file.

    Args:
        options: see Options
        weights: null, `pretrained` (timm downloads them), or the path of a checkpoint
        plugins: unused
    """
    if importlib.util.find_spec("timm") is None:
        raise ConfigurationError("model.source is timm, which is not installed: pip install 'lowerdeck[timm]'")
    if weights is not None and weights != PRETRAINED:
        checkpoints.check_file(weights)


def build(options: Options, weights: str | None) -> torch.nn.Module:
    """The model in eval mode.

    Args:
        options: see Options
        weights: see `check`

    Raises:
        ConfigurationError: timm has no such model or refuses the arguments, or the weights do not fit.
    """
    import timm

    if not timm.is_model(options.architecture):
        near = components.did_you_mean(options.architecture, timm.list_models())
        raise ConfigurationError(f"model.options.architecture is {options.architecture!r}, which timm lacks.{near}")
    try:
        model: torch.nn.Module = timm.create_model(
            options.architecture, pretrained=weights == PRETRAINED, **options.kwargs
        )
    except Exception as error:  # the model's own code, and a download
        raise ConfigurationError(
            f"timm cannot create {options.architecture} with {options.kwargs}: {type(error).__name__}: {error}; "
            "correct model.options.kwargs"
        ) from error
    if weights == PRETRAINED:
        _check_num_classes(options, model)
    elif weights is not None:
        checkpoints.load_into(model, weights)
    return model.eval()


def _check_num_classes(options: Options, model: Any) -> None:
    """timm leaves a last layer random whose size differs; 0 builds none."""
    given, published = options.kwargs.get("num_classes"), model.pretrained_cfg["num_classes"]
    if given and given != published:
        raise ConfigurationError(
            f"model.options.kwargs.num_classes is {given}, but timm's weights of {options.architecture} have "
            f"{published} classes, and the last layer would be random; leave num_classes out, or set model.weights to "
            "null or to your own checkpoint"
        )


fit_random = random_weights.fit_to_noise
