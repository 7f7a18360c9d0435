"""Which sweep a build is a point of."""

from __future__ import annotations

from lowerdeck.artifacts import paths
from lowerdeck.artifacts.files import read_json


def read_sweep_tags() -> dict[str, str]:
    """What the run of this build shall say of the sweep that it is a point of; empty outside of sweeps."""
    if not paths.SWEEP_TAGS.is_file():
        return {}
    return {str(key): str(value) for key, value in read_json(paths.SWEEP_TAGS).items()}
