"""The model that the configuration chooses."""

from __future__ import annotations

from contextlib import chdir
from typing import TYPE_CHECKING

from lowerdeck.execution.resolved_config import section

if TYPE_CHECKING:
    from torch.nn import Module


def chosen_model() -> Module:
    """The chosen model with its weights, in eval mode."""
    from lowerdeck import models
    from lowerdeck.config.schema import ModelConfig

    config = section(ModelConfig)
    with chdir("."):  # a user's factory may change the folder, where build/ is looked for later
        source = models.source(config.source)
        model = source.build(source.Options(**config.options), config.weights)
    fit_random = getattr(source, "fit_random", None)
    if config.weights is None and fit_random is not None:
        fit_random(model, config.input_shapes)
    return model
