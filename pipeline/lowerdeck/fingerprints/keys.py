"""Keys of results: a result that is kept under the same key is the same result."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from lowerdeck.fingerprints.digests import digest, folder_digest
from lowerdeck.fingerprints.versions import LOWERING, lowering_versions

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_NOTHING = "no such key"


def build_key(config: DataclassInstance, manifest: Mapping[str, Any]) -> str:
    """SHA-256 over all that went into a build: where it is the same, so is the build.

    Args:
        config: Resolved configuration. `tracking` does not count: it says where a build is recorded, not what it is.
        manifest: Of the converted program, for the converter and the versions that were really used.
    """
    converter = manifest["converter"]
    return digest(
        {
            "configuration": _configuration(config),
            "converter": {field: converter[field] for field in ("name", "version", "flavor")},
            "versions": {name: manifest["versions"][name] for name in LOWERING},
        }
    )


def upstream_key(config: DataclassInstance, manifest: Mapping[str, Any]) -> str:
    """SHA-256 over all that went into a build but its converter flavor: builds that differ in nothing else share it.

    Args:
        config: Resolved configuration; `flavor`, `tracking` and the target's default flavor do not count.
        manifest: Of the converted program, for the versions that were really used.
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
    """SHA-256 over all that the result of a stage depends on.

    Args:
        module: Entry of the stage, e.g. `stages.export`.
        sources: Digest by path of what no stage makes.
        params: What the stage reads of configuration and code digests, by file.
        inputs: Digest by path of what earlier stages made.
        outputs: Paths that it makes.
        versions: Of tools.
        about: What else the stage is given.
    """
    return digest(
        {
            "module": module,
            "sources": sources,
            "params": params,
            "inputs": inputs,
            "outputs": list(outputs),
            "versions": versions,
            "about": about,
        }
    )


def costly_result_key(code: str, inputs: Iterable[str], sections: Iterable[object]) -> str:
    """SHA-256 over all that a result depends on that is kept between builds: edge programs, checkpoints, measurements.

    Args:
        code: Digest of the code that makes it.
        inputs: SHA-256 of the artifacts that it is made from.
        sections: What it depends on of the configuration and of samples, as values that JSON has.
    """
    return digest([code, list(inputs), list(sections), lowering_versions()])


def output_digests(outputs: Iterable[str], files: Mapping[str, str]) -> dict[str, str]:
    """Digest by path of each output of a stage.

    Args:
        outputs: Files and folders that the stage makes.
        files: SHA-256 by path of all files of its result.
    """
    digests = {}
    for output in outputs:
        below = {path.removeprefix(f"{output}/"): sha for path, sha in files.items() if path.startswith(f"{output}/")}
        digests[output] = files[output] if output in files else folder_digest(below)
    return digests


def value_at(values: Any, key: str) -> Any:
    """What stands at a dotted key of nested mappings; a text of its own where there is no such key."""
    for part in key.split("."):
        if not isinstance(values, Mapping) or part not in values:
            return _NOTHING
        values = values[part]
    return values


def _configuration(config: DataclassInstance) -> dict[str, Any]:
    configuration = dataclasses.asdict(config)
    del configuration["tracking"]
    return configuration
