"""MLflow tags of a build that is a point of a sweep."""

from __future__ import annotations

from lowerdeck.artifacts import paths
from lowerdeck.artifacts.files import read_json


def read_sweep_tags() -> dict[str, str]:
    """The tags by which this build's run names its sweep; empty outside of sweeps."""
    if not paths.SWEEP_TAGS.is_file():
        return {}
    return {str(key): str(value) for key, value in read_json(paths.SWEEP_TAGS).items()}
