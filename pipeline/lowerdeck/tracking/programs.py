"""The `.pte` of a run as one of MLflow's logged models: the pages of models show it with its metrics and parameters."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from lowerdeck.artifacts import paths
from lowerdeck.artifacts.files import read_json
from lowerdeck.tracking.store import BUILD_KEY_TAG

if TYPE_CHECKING:
    from mlflow.entities import LoggedModel, Run
    from mlflow.tracking import MlflowClient

PROGRAM_TAG = "lowerdeck.program_sha256"
FILES = "artifacts"
"""Folder of a model's files, where pyfunc.save_model puts them, too."""
_TYPE = "executorch"
_GROUPS = ("model", "dataset", "target", "quantization", "flavor")
"""Groups whose options are the parameters of a model."""
_REFUSED = re.compile(r"[/:.%\"']")
"""What MLflow refuses in a model's name."""


def find_or_create_model(
    client: MlflowClient, run: Run, name: str | None = None, params: Mapping[str, str] | None = None
) -> tuple[LoggedModel, bool]:
    """The logged model of the program in build/ that belongs to `run`, and whether it is new.

    Args:
        client: Of the store with the run.
        run: The run of the build.
        name: Name of a new model; None for that of the run.
        params: Parameters of the run, if it has none yet.
    """
    from mlflow.entities import LoggedModelOutput

    program_sha256 = read_json(paths.MANIFEST)["program"]["sha256"]
    for output in reversed(run.outputs.model_outputs if run.outputs is not None else []):
        if (known := _existing(client, output.model_id)) and known.tags.get(PROGRAM_TAG) == program_sha256:
            return known, False
    chosen = params or run.data.params
    model = client.create_logged_model(
        run.info.experiment_id,
        name=_REFUSED.sub("_", name or run.info.run_name or _TYPE),
        source_run_id=run.info.run_id,
        tags={PROGRAM_TAG: program_sha256, BUILD_KEY_TAG: run.data.tags.get(BUILD_KEY_TAG, "")},
        params={group: chosen[f"{group}.name"] for group in _GROUPS if f"{group}.name" in chosen},
        model_type=_TYPE,
    )
    client.log_outputs(run.info.run_id, [LoggedModelOutput(model.model_id, step=0)])
    return model, True


def _existing(client: MlflowClient, model_id: str) -> LoggedModel | None:
    """The model, unless somebody deleted it."""
    from mlflow.exceptions import MlflowException

    try:
        return client.get_logged_model(model_id)
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        return None


def log_program(client: MlflowClient, model_id: str) -> None:
    """Put the program in build/ and its manifest among the files of a logged model, which is ready then."""
    with tempfile.TemporaryDirectory() as folder:
        for path in (paths.PROGRAM, paths.MANIFEST):
            shutil.copyfile(path, Path(folder, path.name))
        client.log_model_artifacts(model_id, folder, FILES)
    client.finalize_logged_model(model_id, "READY")
