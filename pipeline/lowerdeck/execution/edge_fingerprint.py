"""What the edge program of a build depends on, so that one from an earlier build is used again."""

from __future__ import annotations

import dataclasses
from typing import Any

from lowerdeck.execution.resolved_config import code_digest, section


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
    backend = backends.source(target.backend)
    options = {name: value for name, value in target.options.items() if name not in backend.delegation_options}
    fingerprint = costly_result_key(
        code_digest("partition"),
        [sha256(paths.QUANTIZED)],
        [dataclasses.asdict(dataclasses.replace(target, options=options)), dataclasses.asdict(section(FlavorConfig))],
    )
    return fingerprint, {name: target.options[name] for name in backend.decomposition_options}
