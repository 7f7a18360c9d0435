"""What a device counted beside what the compiler had estimated of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lowerdeck.artifacts import paths
from lowerdeck.artifacts.files import read_json, write_json
from lowerdeck.artifacts.measurements import read_all_metrics, with_compiler_estimates, write_measurement
from lowerdeck.contracts.devices import DeviceMetric, Provenance
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.steps.measurement import Measurement

SHA256 = "ab" * 32


@pytest.fixture(autouse=True)
def _in_new_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def simulated(*names: str) -> Measurement:
    """What an FVP reported of a program."""
    metrics = [DeviceMetric(name=name, value=40.0, provenance=Provenance.SIMULATED, source="fvp") for name in names]
    return Measurement(
        device="fvp",
        title="an FVP",
        provenance=Provenance.SIMULATED,
        program_sha256=SHA256,
        image=None,
        metrics=metrics,
    )


def write_manifest(sha256: str = SHA256) -> None:
    converter = {"name": "vela", "version": "5.1.0"}
    estimates = {"total_cycles": 44.0, "npu_cycles": 20.0}
    write_json(paths.MANIFEST, {"program": {"sha256": sha256}, "converter": converter, "estimates": estimates})


def test_cycles_stand_beside_the_compilers_estimate_with_its_name() -> None:
    write_manifest()
    found = with_compiler_estimates(simulated("npu_active_cycles", "npu_total_cycles"))
    (estimate,) = found.estimates
    assert (estimate.key, estimate.value) == ("estimated_npu_total_cycles", 44.0)
    assert estimate.provenance.by(estimate.source) == "estimated by vela 5.1.0"
    metrics = {"device_provenance": "simulated on fvp", "num_device_samples": 1}
    write_measurement(metrics, simulated("npu_total_cycles"), [])
    (written,) = read_json(paths.MEASUREMENT)["estimates"]
    assert (written["name"], written["value"]) == ("npu_total_cycles", 44.0)


def test_another_program_or_another_count_has_none() -> None:
    assert not with_compiler_estimates(simulated("npu_total_cycles")).estimates
    write_manifest("cd" * 32)
    assert not with_compiler_estimates(simulated("npu_total_cycles")).estimates
    write_manifest()
    assert not with_compiler_estimates(simulated("instructions")).estimates


@pytest.mark.parametrize("path", [paths.METRICS, paths.DEVICE_METRICS])
@pytest.mark.parametrize(("value", "shown"), [(None, "null"), ([1], r"\[1\]"), ({}, "{}")])
def test_metrics_that_are_no_numbers_are_damage(path: Path, value: Any, shown: str) -> None:
    """`lowerdeck report` ended in an unforeseen TypeError."""
    write_json(paths.METRICS, {"accuracy": 0.5, "sqnr_db": "not defined", "passed": True})
    assert read_all_metrics()["accuracy"] == 0.5
    write_json(path, {"accuracy": value})
    with pytest.raises(LowerdeckError, match=rf"metrics\.json is damaged \(accuracy is {shown}\); delete it"):
        read_all_metrics()
