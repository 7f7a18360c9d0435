"""The dataset that the configuration chooses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowerdeck.execution.resolved_config import section

if TYPE_CHECKING:
    from lowerdeck.contracts.samples import Dataset


def chosen_dataset(seed: int) -> Dataset:
    """The chosen dataset, with samples in the shapes of the chosen model."""
    from lowerdeck import datasets
    from lowerdeck.config.schema import DatasetConfig, ModelConfig

    config = section(DatasetConfig)
    source = datasets.source(config.source)
    return source.load(source.Options(**config.options), section(ModelConfig).input_shapes, seed)
