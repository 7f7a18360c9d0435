"""The dataset that the configuration chooses."""

from __future__ import annotations

import inspect
from contextlib import chdir
from typing import TYPE_CHECKING

from lowerdeck.execution.resolved_config import section

if TYPE_CHECKING:
    from lowerdeck.contracts.samples import Dataset


def chosen_dataset(seed: int) -> Dataset:
    """The chosen dataset, with samples in the shapes and dtypes of the chosen model."""
    from lowerdeck import datasets
    from lowerdeck.config.schema import DatasetConfig, ModelConfig

    config, model = section(DatasetConfig), section(ModelConfig)
    dtypes = model.input_dtypes or ["float32"] * len(model.input_shapes)
    with chdir("."):  # a user's module may change the folder, where build/ is looked for later
        source = datasets.source(config.source)
        wanted = {"input_dtypes": dtypes} if "input_dtypes" in inspect.signature(source.load).parameters else {}
        return source.load(source.Options(**config.options), model.input_shapes, seed, **wanted)
