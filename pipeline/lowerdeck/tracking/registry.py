"""Registers a build's program in MLflow's model registry, as a model that executes the `.pte` on the host."""

from __future__ import annotations

import importlib.metadata
import json
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lowerdeck.artifacts import paths
from lowerdeck.artifacts.files import read_json
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.tracking.programs import PROGRAM_TAG, find_or_create_model
from lowerdeck.tracking.signature import names, signature
from lowerdeck.tracking.store import BUILD_KEY_TAG, TrackingStore, extended_upload_timeout, lock, opened

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion

    from lowerdeck.config.schema import TrackingConfig

_VERSIONS = "mlflow.modelVersions"
_ALWAYS_REQUIRED = ("executorch", "mlflow", "numpy", "torch")
_REQUIRED_BY_DELEGATE = {"NeutronBackend": ("ai-edge-litert", "flatbuffers"), "EthosUBackend": ("tosa-tools",)}
"""Packages that execute the host twins of a delegate."""


@dataclass(frozen=True, kw_only=True)
class Registered:
    """A version in the registry."""

    version: str
    new: bool
    """False if the build, with the same program, was already registered under the name."""


def register(config: TrackingConfig, name: str, run_id: str, build_key: str, alias: str | None = None) -> Registered:
    """Register the program in build/convert under `name`.

    Args:
        config: Where builds are recorded.
        name: Name of the registered model, which is created if it does not exist.
        run_id: The run that recorded the program: the version refers to it and to its logged model.
        build_key: Key of that build.
        alias: Another name of the version, e.g. `candidate`, which any other version loses.

    Raises:
        LowerdeckError: MLflow cannot be reached or refuses the name or the alias, or the program cannot be registered.
    """
    manifest = read_json(paths.MANIFEST)
    with opened(config) as store:
        with lock(store.uri):
            versions = store.client.search_model_versions(_name_filter(name))
            # Code beside the configuration can change the program of a build key.
            same = {BUILD_KEY_TAG: build_key, PROGRAM_TAG: manifest["program"]["sha256"]}
            version = next((known for known in versions if same.items() <= known.tags.items()), None)
            new = version is None
            if version is None:
                version = _new_version(store, name, run_id, build_key, manifest)
        if alias is not None:
            store.client.set_registered_model_alias(name, alias, version.version)
    return Registered(version=str(version.version), new=new)


def _name_filter(name: str) -> str:
    """An MLflow filter for the registered model `name`."""
    quote = '"' if "'" in name else "'"  # MLflow does not understand a doubled one
    return f"name = {quote}{name}{quote}"


def _new_version(
    store: TrackingStore, name: str, run_id: str, build_key: str, manifest: Mapping[str, Any]
) -> ModelVersion:
    model, _ = find_or_create_model(store.client, store.client.get_run(run_id))
    if not model.tags.get(_VERSIONS):  # otherwise other versions have these files, which never change
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary, "model")
            save(folder, run_id, model.model_id, manifest)
            with extended_upload_timeout():
                store.client.log_model_artifacts(model.model_id, str(folder))
        store.client.finalize_logged_model(model.model_id, "READY")
    if not store.client.search_registered_models(_name_filter(name)):
        store.client.create_registered_model(name)
    version = store.client.create_model_version(
        name,
        source=model.artifact_location,
        run_id=run_id,
        model_id=model.model_id,
        tags={BUILD_KEY_TAG: build_key, PROGRAM_TAG: manifest["program"]["sha256"]},
        description=manifest["converter"]["caveat"],
    )
    # By this tag MLflow's page of the logged model links its versions.
    versions = [*json.loads(model.tags.get(_VERSIONS, "[]")), {"name": name, "version": str(version.version)}]
    store.client.set_logged_model_tags(model.model_id, {_VERSIONS: json.dumps(versions)})
    return version


def save(folder: Path, run_id: str, model_id: str, manifest: Mapping[str, Any]) -> None:
    """Write the program in build/convert as a model for mlflow.pyfunc.load_model.

    Args:
        folder: Folder to create.
        run_id: The run that recorded the program.
        model_id: Its logged model.
        manifest: The program's manifest.

    Raises:
        LowerdeckError: a file is missing, or the program has an element type that MLflow lacks.
    """
    import mlflow.pyfunc
    from mlflow.models import Model

    files = {"program": paths.PROGRAM, "manifest": paths.MANIFEST, "twins": paths.TWINS, "data": paths.DATA_FILES}
    for path in files.values():
        if not path.exists():
            raise LowerdeckError(f"{path} is missing; `dvc repro convert` makes it")
    described = signature(manifest)
    with warnings.catch_warnings(action="ignore"):  # MLflow asks for an example to infer the signature from
        mlflow.pyfunc.save_model(
            path=str(folder),
            mlflow_model=Model(artifact_path=model_id, run_id=run_id, model_id=model_id),
            python_model=str(Path(__file__).with_name("pyfunc.py")),
            artifacts={name: str(path.resolve()) for name, path in files.items()},
            code_paths=[str(Path(__file__).parents[1])],
            signature=described,
            input_example=input_example(manifest),
            pip_requirements=requirements(manifest),
            metadata={"program_sha256": manifest["program"]["sha256"], "caveat": manifest["converter"]["caveat"]},
        )


def input_example(manifest: Mapping[str, Any]) -> Any:
    """The inputs of the firmware bundle's test vector, a real sample, in the form that the signature describes.

    Returns:
        One array, or arrays by input name; None where build/firmware has no test vector, or is of another program.
    """
    import numpy as np

    bundled = paths.FIRMWARE / paths.MANIFEST.name
    if not bundled.is_file() or read_json(bundled)["program"]["sha256"] != manifest["program"]["sha256"]:
        return None
    called = names(manifest["inputs"], "input")
    files = [paths.FIRMWARE / f"input_{index}.npy" for index in range(len(called))]
    if not all(file.is_file() for file in files):
        return None
    arrays = [np.load(file, allow_pickle=False) for file in files]
    return arrays[0] if len(arrays) == 1 else dict(zip(called, arrays, strict=True))


def requirements(manifest: Mapping[str, Any]) -> list[str]:
    """The packages that execute the program of `manifest`, at the versions installed here."""
    names = set(_ALWAYS_REQUIRED).union(*(_REQUIRED_BY_DELEGATE.get(name, ()) for name in manifest["delegates"]))
    # Package indexes do not know the part after `+`, the variant of a build.
    return [f"{name}=={importlib.metadata.version(name).partition('+')[0]}" for name in sorted(names)]
