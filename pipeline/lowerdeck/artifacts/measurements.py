"""What a device measured: metrics beside the metrics of evaluate, and what stands behind them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lowerdeck.artifacts import paths
from lowerdeck.artifacts.evaluation_results import check_metrics
from lowerdeck.artifacts.files import damaged, read_json, write_json
from lowerdeck.contracts.devices import DeviceMetric, Provenance
from lowerdeck.evaluation.gates import percent
from lowerdeck.evaluation.metric_names import INFINITE

if TYPE_CHECKING:
    from lowerdeck.explain.costs import Profile
    from lowerdeck.steps.measurement import Measurement

_ESTIMATES = {"npu_total_cycles": "total_cycles"}
"""Name of a device's metric -> the compiler's estimate of the same in the manifest."""


def with_compiler_estimates(measurement: Measurement) -> Measurement:
    """`measurement` with what the compiler estimated of the metrics that the device reports, if it is of build/."""
    manifest = read_json(paths.MANIFEST) if paths.MANIFEST.is_file() else None
    if manifest is None or manifest["program"]["sha256"] != measurement.program_sha256:
        return measurement
    tool = f"{manifest['converter']['name']} {manifest['converter']['version']}"
    found = [
        DeviceMetric(name=name, value=manifest["estimates"][key], provenance=Provenance.ESTIMATED, source=tool)
        for name, key in _ESTIMATES.items()
        if key in manifest["estimates"] and name in {metric.name for metric in measurement.metrics}
    ]
    return dataclasses.replace(measurement, estimates=[*measurement.estimates, *found])


def write_measurement(metrics: Mapping[str, Any], measurement: Measurement | None, digests: list[str]) -> None:
    """Write the metrics and the measurement.

    Args:
        metrics: Metrics by name; empty without a device.
        measurement: What the device returned; None without one.
        digests: Those of the samples.
    """
    content = {} if measurement is None else described(with_compiler_estimates(measurement)) | {"samples": digests}
    write_json(paths.MEASUREMENT, content)
    write_json(paths.DEVICE_METRICS, dict(metrics))
    if measurement is not None:
        print(f"measure: {summary_line(metrics)}")


def summary_line(metrics: Mapping[str, Any]) -> str:
    """What a device found, in a line for the terminal."""
    where = metrics["device_provenance"]
    if "device_failure" in metrics:
        return f"not executed ({where}): {metrics['device_failure']}"
    parts = [f"{metrics['num_device_samples']} samples {where}"]
    if "device_exact_share" in metrics:
        equal = f"{percent(metrics['device_exact_share'], 2)} of outputs equal the host's"
        parts.append(f"{equal}, at most {largest_difference(metrics)} off")
    if "device_first_difference" in metrics:
        parts.append(f"they begin to differ at {metrics['device_first_difference']}")
    if "measured_latency_ms" in metrics:
        parts.append(f"median {metrics['measured_latency_ms']:.3f} ms")
    return ", ".join(parts)


def largest_difference(metrics: Mapping[str, Any]) -> str:
    """The largest difference of outputs on the device from the host's, in LSBs if they have some."""
    lsb = metrics.get("device_error_lsb")
    found = metrics["device_max_error"] if lsb is None else lsb
    if found == INFINITE:
        return "infinitely far"
    return f"{found:.3g}" if lsb is None else f"{found:.4g} LSB"


def described(measurement: Measurement) -> dict[str, Any]:
    """A measurement without its outputs, as JSON values."""
    image = measurement.image
    return {
        "device": measurement.device,
        "board": measurement.board,
        "title": measurement.title,
        "provenance": measurement.provenance.by(measurement.device),
        "program_sha256": measurement.program_sha256,
        "runtime": None if image is None else {"name": image.name, "version": image.version, "sha256": image.sha256},
        "metrics": [dataclasses.asdict(metric) for metric in measurement.metrics],
        "estimates": [dataclasses.asdict(metric) for metric in measurement.estimates],
        "latencies_ms": list(measurement.latencies_ms),
        "operators": [dataclasses.asdict(operator) for operator in measurement.operators],
        "notes": list(measurement.notes),
        "log": measurement.log,
        "failure": measurement.failure,
    }


def read_all_metrics() -> dict[str, Any]:
    """The metrics of evaluate, and the metrics of the device where one was configured.

    Raises:
        LowerdeckError: evaluate has not run, or a file is damaged or not as it was written.
    """
    check_metrics()
    metrics = _read_metrics(paths.METRICS)
    metrics.update(_read_metrics(paths.DEVICE_METRICS) if paths.DEVICE_METRICS.is_file() else {})
    return metrics


def _read_metrics(path: Path) -> dict[str, Any]:
    """Metrics are numbers or texts; those that were not measured are left out."""
    metrics: dict[str, Any] = read_json(path)
    for name, value in metrics.items():
        if not isinstance(value, (int, float, str)):
            raise damaged(path, f"{name} is {json.dumps(value)}")
    return metrics


def read_profile() -> Profile | None:
    """Costs of the operators of the program in build/; None where no device measured those of this program."""
    from lowerdeck.explain.costs import Profile

    if not (paths.MEASUREMENT.is_file() and paths.MANIFEST.is_file()):
        return None
    measurement, manifest = read_json(paths.MEASUREMENT), read_json(paths.MANIFEST)
    is_of_program = measurement.get("program_sha256") == manifest["program"]["sha256"]
    if not measurement.get("operators") or not is_of_program:
        return None
    return Profile(
        provenance=measurement["provenance"],
        operators=measurement["operators"],
        instructions=manifest.get("instructions", {}),
    )


def has_measurement() -> bool:
    """Whether a device was configured and measured the build."""
    return paths.DEVICE_METRICS.is_file() and bool(read_json(paths.DEVICE_METRICS))
