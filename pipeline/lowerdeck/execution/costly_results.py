"""Keys of the costly results that are kept between builds: edge programs, and checkpoints of training."""

from __future__ import annotations

import dataclasses
from typing import Any

from lowerdeck.execution.resolved_config import code_digest, section


def training_fingerprint() -> str:
    """SHA-256 over all that a training depends on: only a checkpoint with the same is taken up again."""
    from lowerdeck.artifacts import paths
    from lowerdeck.artifacts.files import sha256
    from lowerdeck.config.schema import BuildConfig, DatasetConfig, ModelConfig, QuantizationConfig, TargetConfig
    from lowerdeck.fingerprints.keys import costly_result_key

    target = section(TargetConfig)
    sections = (section(BuildConfig), section(DatasetConfig), section(ModelConfig), section(QuantizationConfig))
    return costly_result_key(
        code_digest("calibrate"),
        [sha256(paths.EXPORTED)],
        [*(dataclasses.asdict(chosen) for chosen in sections), target.backend, target.device],
    )


def edge_fingerprint() -> tuple[str, dict[str, Any]]:
    """What the edge program depends on, but for the operators that the partitioner preserves.

    Returns:
        SHA-256 over the quantized program, the code of the stage, and the configuration without options that do not
        change the edge program; and those options that decide which operators are preserved.
    """
    from lowerdeck import backends
    from lowerdeck.artifacts import paths
    from lowerdeck.artifacts.files import sha256
    from lowerdeck.config.schema import FlavorConfig, TargetConfig
    from lowerdeck.fingerprints.keys import costly_result_key

    target = section(TargetConfig)
    declaration = backends.source(target.backend)
    options = {name: value for name, value in target.options.items() if name not in declaration.delegation_options}
    fingerprint = costly_result_key(
        code_digest("partition"),
        [sha256(paths.QUANTIZED)],
        [dataclasses.asdict(dataclasses.replace(target, options=options)), dataclasses.asdict(section(FlavorConfig))],
    )
    return fingerprint, {name: target.options[name] for name in declaration.decomposition_options}
