"""The firmware bundle with the record of its build: build/firmware.zip."""

from __future__ import annotations

from lowerdeck.artifacts.firmware_bundle import write_firmware_zip
from lowerdeck.artifacts.measurements import read_all_metrics
from lowerdeck.config.schema import Config
from lowerdeck.report.summary import bundle_record


def write_recorded_bundle(config: Config, build_key: str) -> None:
    """Write build/firmware.zip, with accuracy, gates and the build key.

    Raises:
        LowerdeckError: the stage firmware or evaluate has not run.
    """
    metrics = read_all_metrics()
    threshold = metrics.get("delegated_threshold") if config.task.source == "anomaly" else None
    is_known = isinstance(threshold, float)  # a text says why there is none
    write_firmware_zip(build_key, bundle_record(config, metrics), threshold if is_known else None)
