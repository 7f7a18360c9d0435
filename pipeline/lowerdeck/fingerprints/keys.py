"""Keys of results: equal keys mean equal results, and for builds equal configurations."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from lowerdeck.fingerprints.digests import digest, folder_digest
from lowerdeck.fingerprints.versions import LOWERING, lowering_versions

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_NOTHING = "no such key"
NOT_OF_A_BUILD = ("tracking", "compare")
"""Sections of the configuration that decide where a build is recorded and how it is compared, not what it is."""


def build_key(config: DataclassInstance, manifest: Mapping[str, Any]) -> str:
    """SHA-256 over everything that a build depends on, except code that no fingerprint covers, such as a dataset's.

    Args:
        config: Resolved configuration. Sections of NOT_OF_A_BUILD are left out.
        manifest: Manifest of the converted program, with the converter and versions actually used.
    """
    converter = {field: manifest["converter"][field] for field in ("name", "version", "flavor")}
    versions = {name: manifest["versions"][name] for name in LOWERING}
    return digest({"configuration": _configuration(config), "converter": converter, "versions": versions})


def program_identity(manifest: Mapping[str, Any]) -> str:
    """SHA-256 of the program, or over the program and the data files that it reads beside itself.

    Args:
        manifest: Manifest of the converted program.
    """
    program, data_files = str(manifest["program"]["sha256"]), manifest["data_files"]
    if not data_files:
        return program
    parts = [program, *(f"{name} {file['sha256']}" for name, file in sorted(data_files.items()))]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def upstream_key(config: DataclassInstance, manifest: Mapping[str, Any]) -> str:
    """SHA-256 over everything that a build depends on except its converter flavor.

    Args:
        config: Resolved configuration; `flavor`, the target's default flavor and NOT_OF_A_BUILD are left out.
        manifest: Manifest of the converted program, with the versions actually used.
    """
    configuration = _configuration(config)
    del configuration["flavor"], configuration["target"]["default_flavor"]
    return digest({"configuration": configuration, "versions": {name: manifest["versions"][name] for name in LOWERING}})


def stage_key(
    *,
    module: str,
    sources: Mapping[str, str],
    params: Mapping[str, Any],
    inputs: Mapping[str, str],
    outputs: Iterable[str],
    versions: Mapping[str, str],
    about: Any = None,
) -> str:
    """SHA-256 over everything that the result of a stage depends on.

    Args:
        module: Entry of the stage, e.g. `stages.export`.
        sources: Digest by path of files that no stage makes.
        params: Values of the configuration and code digests that the stage reads, by file.
        inputs: Digest by path of earlier stages' outputs.
        outputs: Paths that the stage makes.
        versions: Versions of tools.
        about: Anything else that the stage depends on.
    """
    key = {"module": module, "sources": sources, "params": params, "inputs": inputs}
    return digest(key | {"outputs": list(outputs), "versions": versions, "about": about})


def costly_result_key(code: str, inputs: Iterable[str], sections: Iterable[object]) -> str:
    """SHA-256 over everything that a result reused between builds depends on: edge program, checkpoint, measurement.

    Args:
        code: Digest of the code that makes the result.
        inputs: SHA-256 of the artifacts that it is made from.
        sections: Parts of the configuration and of samples that it depends on, as JSON values.
    """
    return digest([code, list(inputs), list(sections), lowering_versions()])


def output_digests(outputs: Iterable[str], files: Mapping[str, str]) -> dict[str, str]:
    """Digest by path of each output of a stage.

    Args:
        outputs: Files and folders that the stage makes.
        files: SHA-256 by path of all files in its result.
    """
    digests = {}
    for output in outputs:
        below = {path.removeprefix(f"{output}/"): sha for path, sha in files.items() if path.startswith(f"{output}/")}
        digests[output] = files[output] if output in files else folder_digest(below)
    return digests


def value_at(values: Any, key: str) -> Any:
    """The value at a dotted key of nested mappings, or a fixed string if the key does not exist."""
    for part in key.split("."):
        if not isinstance(values, Mapping) or part not in values:
            return _NOTHING
        values = values[part]
    return values


def _configuration(config: DataclassInstance) -> dict[str, Any]:
    configuration = dataclasses.asdict(config)
    for section in NOT_OF_A_BUILD:
        configuration.pop(section, None)
    return configuration
