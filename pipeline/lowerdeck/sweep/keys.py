"""Under which key the result of a stage is kept: a digest of all that it was made of, as dvc.yaml declares it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lowerdeck.sweep.content import digest, folder_digest
from lowerdeck.sweep.declaration import Stage

_NOTHING = "no such key"


def stage_key(
    stage: Stage,
    *,
    source_digest: Callable[[str], str],
    config: Mapping[str, Any],
    inputs: Mapping[str, str],
    versions: Mapping[str, str],
    about: Any = None,
) -> str:
    """SHA-256 over the stage's code, its sections of the configuration, its inputs and the tools.

    Args:
        stage: As dvc.yaml declares it.
        source_digest: Gives the digest of each of `stage.sources`.
        config: Resolved configuration, as plain values.
        inputs: Digest by path of each of `stage.inputs`.
        versions: Of tools.
        about: What else the stage is given.
    """
    return digest(
        {
            "stage": stage.name,
            "module": stage.module,
            "sources": {path: source_digest(path) for path in stage.sources},
            "params": {key: _value_at(config, key) for key in stage.params},
            "inputs": {path: inputs[path] for path in stage.inputs},
            "outputs": stage.outputs,
            "versions": versions,
            "about": about,
        }
    )


def output_digests(stage: Stage, files: Mapping[str, str]) -> dict[str, str]:
    """Digest by path of each of the stage's outputs.

    Args:
        stage: As dvc.yaml declares it.
        files: SHA-256 by path of all files of its result.
    """
    digests = {}
    for output in stage.outputs:
        below = {path.removeprefix(f"{output}/"): sha for path, sha in files.items() if path.startswith(f"{output}/")}
        digests[output] = files[output] if output in files else folder_digest(below)
    return digests


def _value_at(config: Any, key: str) -> Any:
    for part in key.split("."):
        if not isinstance(config, Mapping) or part not in config:
            return _NOTHING
        config = config[part]
    return config
