"""A comparison as an MLflow run, identified by the builds that it compares."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from lowerdeck.artifacts.files import write_text
from lowerdeck.fingerprints.digests import digest
from lowerdeck.tracking.content import MAX_TAG_CHARACTERS
from lowerdeck.tracking.recorded_run import KIND_TAG
from lowerdeck.tracking.store import extended_upload_timeout, find_or_create_experiment, lock, opened

if TYPE_CHECKING:
    from lowerdeck.config.schema import TrackingConfig

COMPARISON = "comparison"
COMPARISONS = "comparisons"
"""What the name of their experiment adds to that of the builds', whose table they would otherwise mix with."""
KEY_TAG = "lowerdeck.comparison_key"
"""The tag that identifies the run of a comparison."""


def log_comparison(
    config: TrackingConfig, *, name: str, labels: Sequence[str], objectives: str, files: Mapping[str, str]
) -> str:
    """Put a comparison's files into its run, which is created if it does not exist.

    Args:
        config: Where builds are recorded.
        name: Name of the run.
        labels: Run ids and revisions of the compared builds.
        objectives: Objectives of the comparison.
        files: Name -> content.

    Returns:
        The run's id.

    Raises:
        LowerdeckError: MLflow cannot be reached or refuses.
    """
    key = digest({"builds": sorted(labels), "objectives": objectives})
    tags = {KIND_TAG: COMPARISON, "compared": " ".join(labels)[:MAX_TAG_CHARACTERS], "objectives": objectives}
    with opened(config) as store, tempfile.TemporaryDirectory() as temporary:
        with lock(store.uri):
            apart = replace(config, experiment=f"{config.experiment} {COMPARISONS}")
            experiment_id = find_or_create_experiment(store, apart)
            found = store.client.search_runs([experiment_id], f"tags.`{KEY_TAG}` = '{key}'", max_results=1)
            run = found[0] if found else store.client.create_run(experiment_id, tags={KEY_TAG: key}, run_name=name)
        run_id: str = run.info.run_id
        for tag, value in tags.items():
            store.client.set_tag(run_id, tag, value)
        with extended_upload_timeout():
            for file, content in files.items():
                write_text(Path(temporary, file), content)
                store.client.log_artifact(run_id, str(Path(temporary, file)))
        store.client.set_terminated(run_id, "FINISHED")
    return run_id
