"""A comparison as an MLflow run, identified by the builds that it compares."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

from lowerdeck.artifacts.files import write_text
from lowerdeck.contracts.errors import LowerdeckError
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


class ComparisonRun(TypedDict):
    """What is logged of a comparison."""

    name: str
    """Name of the run."""
    labels: Sequence[str]
    """Run ids and revisions of the compared builds."""
    objectives: str
    """Objectives of the comparison."""
    files: Mapping[str, str]
    """Name -> content."""


def log_comparison(config: TrackingConfig, **comparison: Unpack[ComparisonRun]) -> str:
    """Put a comparison's files into its run, which is created if it does not exist.

    Args:
        config: Where builds are recorded.
        **comparison: What is logged.

    Returns:
        The run's id.

    Raises:
        LowerdeckError: MLflow cannot be reached or refuses.
    """
    labels, objectives = comparison["labels"], comparison["objectives"]
    key = digest({"builds": sorted(labels), "objectives": objectives})
    tags = {KIND_TAG: COMPARISON, "compared": " ".join(labels)[:MAX_TAG_CHARACTERS], "objectives": objectives}
    with opened(config) as store, tempfile.TemporaryDirectory() as temporary:
        with lock(store.uri):
            apart = replace(config, experiment=f"{config.experiment} {COMPARISONS}")
            experiment_id = find_or_create_experiment(store, apart)
            found = store.client.search_runs([experiment_id], f"tags.`{KEY_TAG}` = '{key}'", max_results=1)
            run = (
                found[0]
                if found
                else store.client.create_run(experiment_id, tags={KEY_TAG: key}, run_name=comparison["name"])
            )
        run_id: str = run.info.run_id
        for tag, value in tags.items():
            store.client.set_tag(run_id, tag, value)
        with extended_upload_timeout():
            for file, content in comparison["files"].items():
                write_text(Path(temporary, file), content)
                store.client.log_artifact(run_id, str(Path(temporary, file)))
        store.client.set_terminated(run_id, "FINISHED")
    return run_id


def start_logging(config: TrackingConfig, log: Path, **comparison: Unpack[ComparisonRun]) -> None:
    """Run `log_comparison` in a process that outlives this one, because importing MLflow takes seconds.

    Args:
        config: Where builds are recorded.
        log: What that process writes: nothing, unless it fails.
        **comparison: What is logged.
    """
    with tempfile.TemporaryFile("w+") as given, log.open("w") as output:
        json.dump({"config": asdict(config), **comparison}, given)
        given.seek(0)  # the child shares the position, too
        command = [sys.executable, "-P", "-m", "lowerdeck.tracking.comparisons"]
        subprocess.Popen(command, stdin=given, stdout=output, stderr=output, start_new_session=True)


def main() -> None:
    """Log the comparison that standard input describes."""
    from lowerdeck.config.schema import TrackingConfig

    request = json.load(sys.stdin)
    try:
        log_comparison(TrackingConfig(**request.pop("config")), **request)
    except LowerdeckError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
