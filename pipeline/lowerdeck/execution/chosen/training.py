"""The training that the configuration chooses."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from lowerdeck.artifacts import paths
from lowerdeck.artifacts.files import sha256
from lowerdeck.artifacts.training_checkpoints import TrainingCheckpoints
from lowerdeck.execution.resolved_config import code_digest, section

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from lowerdeck.contracts.samples import Dataset
    from lowerdeck.quantization.training import Training


def chosen_training(dataset: Dataset, program: ExportedProgram) -> Training | None:
    """The training that the chosen quantization configures for `program`; None if it configures none.

    Raises:
        LowerdeckError: the program has no output of the configured name.
        SampleOverlapError: a sample is in both the training and the evaluation split.
    """
    from lowerdeck.config.schema import QuantizationConfig
    from lowerdeck.datasets.choice import training_split
    from lowerdeck.datasets.overlap import check_disjoint

    config = section(QuantizationConfig).training
    if config is None:
        return None
    from lowerdeck.graph.outputs import output_names
    from lowerdeck.quantization.training import Recipe, Training
    from lowerdeck.tasks.outputs import chosen_name

    split = training_split(dataset)
    check_disjoint(split, dataset.evaluation, "training")
    checkpoints, names, values = TrainingCheckpoints(training_fingerprint()), output_names(program), vars(config).copy()
    output = names.index(chosen_name(names, values.pop("output"), "quantization.training.output"))
    return Training(recipe=Recipe(**values), split=split, checkpoints=checkpoints, output=output)


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
