"""The training that the configuration chooses."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from lowerdeck.artifacts import paths
from lowerdeck.artifacts.files import sha256
from lowerdeck.artifacts.training_checkpoints import TrainingCheckpoints
from lowerdeck.execution.resolved_config import code_digest, section

if TYPE_CHECKING:
    from lowerdeck.contracts.samples import Dataset
    from lowerdeck.quantization.training import Training


def chosen_training(dataset: Dataset) -> Training | None:
    """The training that the chosen quantization configures; None if it configures none.

    Raises:
        SampleOverlapError: a sample is in both the training and the evaluation split.
    """
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


def training_fingerprint() -> str:
    """SHA-256 over everything that a training depends on: it resumes only from a checkpoint with an equal one."""
    from lowerdeck.config.schema import BuildConfig, DatasetConfig, ModelConfig, QuantizationConfig, TargetConfig
    from lowerdeck.fingerprints.keys import costly_result_key

    target = section(TargetConfig)
    sections = (section(BuildConfig), section(DatasetConfig), section(ModelConfig), section(QuantizationConfig))
    return costly_result_key(
        code_digest("calibrate"),
        [sha256(paths.EXPORTED)],
        [*(dataclasses.asdict(chosen) for chosen in sections), target.backend, target.device],
    )
