"""Lineage of a build: the build key, and the chain of artifacts from the dataset to the `.pte`.

It contains no time, run id or commit, so that equal builds give equal bytes, and does not need MLflow.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lowerdeck.artifacts import paths
from lowerdeck.artifacts.files import read_json, sha256
from lowerdeck.config.schema import Config
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.fingerprints.digests import digest
from lowerdeck.fingerprints.keys import build_key, upstream_key

EXTERNAL = "given"
"""`made_by` of links that no stage makes: the dataset, and weights that were trained elsewhere."""


def trace(config: Config) -> dict[str, Any]:
    """The lineage of the build in build/, the content of lineage.json.

    Returns:
        `build_key`, `upstream_key`, `versions`, and the ordered `links`: name, what, sha256, made_by, from (names of
        other links), and fields of single links: counts of samples, fingerprints, the converter.

    Raises:
        LowerdeckError: an artifact is missing, or the program is not the one that its manifest describes.
    """
    manifest = read_json(paths.MANIFEST)
    return {
        "build_key": build_key(config, manifest),
        "upstream_key": upstream_key(config, manifest),
        "versions": manifest["versions"],
        "links": [_dataset_link(config), *artifact_links(config)],
    }


def artifact_links(config: Config) -> list[dict[str, Any]]:
    """The links from the weights to the `.pte`, for which a build has to be completed through convert.

    Raises:
        LowerdeckError: an artifact is missing, or the program is not the one that its manifest describes.
    """
    manifest = read_json(paths.MANIFEST)
    program = _file_link("program", paths.PROGRAM, "convert", ["quantized", "plan"])
    if program["sha256"] != manifest["program"]["sha256"]:
        raise LowerdeckError(
            f"{paths.PROGRAM} is not the program that {paths.MANIFEST} describes; `dvc repro -f convert` makes "
            "both again"
        )
    return [
        _weights_link(config, manifest),
        _file_link("exported", paths.EXPORTED, "export", ["weights"]),
        _file_link("observers", paths.OBSERVERS, "calibrate", ["dataset", "exported"]),
        _file_link("quantized", paths.QUANTIZED, "quantize", ["exported", "observers"]),
        _file_link("plan", paths.PLAN, "convert", ["quantized"]),
        program | {"converter": manifest["converter"]},
    ]


def _file_link(name: str, path: Path, stage: str, sources: list[str]) -> dict[str, Any]:
    return {"name": name, "what": path.as_posix(), "sha256": sha256(path), "made_by": stage, "from": sources}


def _dataset_link(config: Config) -> dict[str, Any]:
    """The dataset by the samples actually used; its fingerprint covers everything that its source can read."""
    samples = {
        "calibration": samples_used(paths.CALIBRATION_SAMPLES),
        "evaluation": samples_used(paths.EVALUATION_SAMPLES),
    }
    return {
        "name": "dataset",
        "what": f"{config.dataset.name}: the samples that calibrate and evaluate used",
        "sha256": digest(samples),
        "made_by": EXTERNAL,
        "from": [],
        "fingerprint": config.dataset.fingerprint,
        **samples,
    }


def samples_used(path: Path) -> dict[str, Any]:
    """Number of the samples that a stage listed at `path`, and SHA-256 over their digests in order."""
    digests = read_json(path, list)
    return {"num_samples": len(digests), "sha256": digest(digests)}


def _weights_link(config: Config, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """The weights: the content of a local checkpoint, else the digest of what decides them."""
    model = config.model
    link: dict[str, Any] = {"name": "weights", "from": [], "fingerprint": model.fingerprint}
    if model.weights is not None and (path := Path(model.weights)).is_file():
        return link | {"what": path.as_posix(), "sha256": sha256(path), "made_by": EXTERNAL}
    if model.weights is not None:
        return link | {"what": model.weights, "sha256": digest([model.weights, model.fingerprint]), "made_by": EXTERNAL}
    # Random weights are not in a file: the model, the seed and PyTorch's generator decide them.
    recipe = [model.source, model.options, model.fingerprint, config.build.seed, manifest["versions"]["torch"]]
    return link | {"what": f"random, seed {config.build.seed}", "sha256": digest(recipe), "made_by": "export"}
