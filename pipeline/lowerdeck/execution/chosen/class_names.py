"""The names of the classes that the model tells apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowerdeck.execution.resolved_config import section

if TYPE_CHECKING:
    from lowerdeck.contracts.samples import Dataset


def chosen_class_names(dataset: Dataset) -> tuple[str, ...]:
    """Those of the dataset, or else those that come with the model's weights; empty where neither has some."""
    from lowerdeck import models
    from lowerdeck.config.schema import ModelConfig
    from lowerdeck.contracts.samples import class_names

    if found := class_names(dataset):
        return found
    config = section(ModelConfig)
    source = models.source(config.source)
    names = getattr(source, "class_names", None)
    return () if names is None or dataset.structural else tuple(names(source.Options(**config.options), config.weights))
