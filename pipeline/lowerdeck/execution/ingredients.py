"""What costly results are made of, as digests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lowerdeck.execution.resolved_config import section


def training_fingerprint() -> str:
    """SHA-256 over all that a training depends on: only a checkpoint of the same may be taken up."""
    import dataclasses
    import hashlib
    import importlib.metadata
    import json

    from lowerdeck.artifacts import paths
    from lowerdeck.artifacts.files import sha256
    from lowerdeck.config.schema import BuildConfig, DatasetConfig, ModelConfig, QuantizationConfig, TargetConfig

    target, code = section(TargetConfig), Path(__file__).parents[1]
    sections = (section(BuildConfig), section(DatasetConfig), section(ModelConfig), section(QuantizationConfig))
    fingerprinted = [
        sha256(paths.EXPORTED),
        [dataclasses.asdict(chosen) for chosen in sections],
        [target.backend, target.device],
        [importlib.metadata.version(name) for name in ("torch", "executorch", "torchao")],
        [sha256(path) for path in sorted((code / "quantization").glob("*.py"))],
    ]
    return hashlib.sha256(json.dumps(fingerprinted, sort_keys=True).encode()).hexdigest()


def edge_fingerprint() -> tuple[str, dict[str, Any]]:
    """What the edge program is made of, but for what the partitioner keeps whole.

    Returns:
        SHA-256 over the quantized program, the code, and the configuration without options that have no other say in
        it; and those options that decide what is kept whole.
    """
    import dataclasses
    import hashlib
    import importlib.metadata
    import json

    from lowerdeck import backends
    from lowerdeck.artifacts import paths
    from lowerdeck.artifacts.files import sha256
    from lowerdeck.config.schema import FlavorConfig, TargetConfig

    target = section(TargetConfig)
    backend = backends.source(target.backend)
    options = {name: value for name, value in target.options.items() if name not in backend.delegation_options}
    code = Path(__file__).parents[1]
    files = sorted(code.rglob("*.py"))
    fingerprinted = [
        sha256(paths.QUANTIZED),
        dataclasses.asdict(dataclasses.replace(target, options=options)),
        dataclasses.asdict(section(FlavorConfig)),
        [importlib.metadata.version(name) for name in ("torch", "executorch", "torchao")],
        [[file.relative_to(code).as_posix(), sha256(file)] for file in files],
    ]
    digest = hashlib.sha256(json.dumps(fingerprinted, sort_keys=True).encode()).hexdigest()
    return digest, {name: target.options[name] for name in backend.decomposition_options}
