"""The training that the configuration chooses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowerdeck.execution.costly_results import training_fingerprint
from lowerdeck.execution.resolved_config import section

if TYPE_CHECKING:
    from lowerdeck.contracts.samples import Dataset
    from lowerdeck.quantization.training import Training


def chosen_training(dataset: Dataset) -> Training | None:
    """The training that the chosen quantization wants, None where it wants none.

    Raises:
        SampleOverlapError: a sample would serve training and evaluation.
    """
    import dataclasses

    from lowerdeck.artifacts.training_checkpoints import TrainingCheckpoints
    from lowerdeck.config.schema import QuantizationConfig
    from lowerdeck.datasets.choice import training_split
    from lowerdeck.datasets.overlap import check_disjoint

    config = section(QuantizationConfig).training
    if config is None:
        return None
    from lowerdeck.quantization.training import Recipe, Training

    split = training_split(dataset)
    check_disjoint(split, dataset.evaluation, "training")
    checkpoints = TrainingCheckpoints(training_fingerprint())
    return Training(recipe=Recipe(**dataclasses.asdict(config)), split=split, checkpoints=checkpoints)
