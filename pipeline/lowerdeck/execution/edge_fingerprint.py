"""Fingerprint of a build's edge program, by which one of an earlier build is reused."""

from __future__ import annotations

import dataclasses
from typing import Any

from lowerdeck.artifacts import paths
from lowerdeck.artifacts.files import sha256
from lowerdeck.execution.resolved_config import code_digest, section


def edge_fingerprint() -> tuple[str, dict[str, Any]]:
    """Everything that the edge program, and its check against the quantized program, depend on.

    Except the operators that the partitioner preserves.

    Returns:
        SHA-256 over the quantized program, the inputs of the check, the code of the stage, and the configuration
        without options that do not change the edge program; and the options that decide which operators are preserved.
    """
    from lowerdeck import backends
    from lowerdeck.config.schema import FlavorConfig, TargetConfig
    from lowerdeck.execution.chosen.conformance import chosen_conformance
    from lowerdeck.fingerprints.keys import costly_result_key

    target = section(TargetConfig)
    backend = backends.source(target.backend)
    options = {name: value for name, value in target.options.items() if name not in backend.delegation_options}
    fingerprint = costly_result_key(
        code_digest("partition"),
        [sha256(paths.QUANTIZED), sha256(paths.CHECK_INPUTS)],
        [
            dataclasses.asdict(dataclasses.replace(target, options=options)),
            dataclasses.asdict(section(FlavorConfig)),
            chosen_conformance().num_samples,
        ],
    )
    return fingerprint, {name: target.options[name] for name in backend.decomposition_options}
