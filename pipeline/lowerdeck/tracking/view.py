"""The table of builds with which MLflow's page of an experiment opens: its columns, as one of MLflow's shared views.

MLflow keeps a shared view in a tag of the experiment, and an address names its key. The tag's value is what the button
"Share" of MLflow 3.17 writes; states that a later MLflow does not know it ignores.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from lowerdeck.tracking.store import TrackingStore

if TYPE_CHECKING:
    from mlflow.entities import Experiment

KEY = "lowerdeck"
TAG = f"mlflow.sharedViewState.{KEY}"
QUERY = f"viewStateShareKey={KEY}"
_DROPS = ("quantization_drop", "delegation_drop")
_COSTS = ("delegated_share", "program_bytes", "planned_memory_bytes")
_NAME = "attributes.`Run Name`"
_TAGS = ("target", "flavor", "quantization", "gates")


def save(store: TrackingStore, experiment_id: str, primary: str | None = None) -> bool:
    """Let the experiment have the view, and return whether it has.

    Args:
        store: Where the experiment is.
        experiment_id: Its id.
        primary: First metric of a build's task, which becomes a column; those of other builds stay. None adds none.
    """
    from mlflow.exceptions import MlflowException

    experiment = store.client.get_experiment(experiment_id)
    accuracies = _accuracies(experiment)
    if primary is not None and (own := f"delegated_{primary}") not in accuracies:
        accuracies.append(own)
    state = _state(accuracies or ["delegated_accuracy"])
    if experiment.tags.get(TAG) == state:
        return True
    try:
        store.client.set_experiment_tag(experiment_id, TAG, state)
    except MlflowException:  # the server lets this user read only: the page opens without the columns
        return TAG in experiment.tags
    return True


def _accuracies(experiment: Experiment) -> list[str]:
    """The accuracies that are columns of the view that the experiment has."""
    known = json.loads(experiment.tags.get(TAG, "{}")).get("selectedColumns", [])
    metrics = [column.removeprefix("metrics.`").removesuffix("`") for column in known]
    return [name for name in metrics if name.startswith("delegated_") and name not in _COSTS]


def _state(accuracies: list[str]) -> str:
    metrics = [f"metrics.`{name}`" for name in (*accuracies, *_DROPS, *_COSTS)]
    tags = [f"tags.`{name}`" for name in _TAGS]
    return json.dumps(
        {"selectedColumns": [*metrics, *tags], "columnOrder": [_NAME, *metrics, *tags], "columnWidths": {_NAME: 340}}
    )
