"""Whether there is a firmware bundle, and how it fills the memories of the target."""

from __future__ import annotations

from typing import Any

from lowerdeck.artifacts import paths
from lowerdeck.artifacts.files import read_json


def read_firmware() -> tuple[str | None, dict[str, Any] | None]:
    """Why the bundle could not be made, None where it was; and the metrics of the memory budget, None without one.

    Raises:
        LowerdeckError: the stage firmware has not run.
    """
    status = read_json(paths.FIRMWARE_STATUS)
    return status["failure"], status.get("memory_budget")
