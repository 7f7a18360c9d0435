"""Stages with schemes that build the model again, as a user runs them: each in a process of its own."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.project import Project, tail

STAGES = ("compose", "export", "calibrate", "quantize", "baseline", "partition", "convert", "firmware", "evaluate")


@pytest.mark.slow
def test_four_bit_weights_go_through_all_stages(make_project: Callable[[str], Project]) -> None:
    project = make_project("four_bits")
    project.edit_params(quantization="int4_groupwise", target="xnnpack_cpu")
    for name in STAGES:
        done = project.stage(name, LOWERDECK_PRELOAD="0")
        assert done.returncode == 0, (name, tail(done.stderr))
    build = project.root / "build"
    assert json.loads((build / "calibrate" / "samples.json").read_text()) == []  # nothing observes samples
    report = json.loads((build / "quantize" / "report.json").read_text())
    assert [entry["quant_max"] for entry in report if entry["is_constant"]] == [7]
    metrics = json.loads((build / "evaluate" / "metrics.json").read_text())
    assert metrics["executed_by"] == "ExecuTorch runtime"
    assert metrics["delegated_share"] == 1.0
    assert metrics["delegated_accuracy"] > 0.95


@pytest.mark.slow
def test_samples_are_chosen_as_configured_and_recorded(make_project: Callable[[str], Project]) -> None:
    project = make_project("stratified")
    overrides = {"quantization": {"num_calibration_samples": 20, "calibration_choice": "stratified"}}
    project.edit_params(target="xnnpack_cpu", overrides=overrides)
    for name in ("compose", "export", "calibrate"):
        done = project.stage(name, LOWERDECK_PRELOAD="0")
        assert done.returncode == 0, (name, tail(done.stderr))
    samples = json.loads((project.root / "build" / "calibrate" / "samples.json").read_text())
    assert len(set(samples)) == 20
    project.edit_params(dataset="random", overrides=overrides | {"dataset": {"options": {"num_classes": None}}})
    assert project.stage("compose").returncode == 0
    refused = project.stage("calibrate", LOWERDECK_PRELOAD="0")
    assert refused.returncode == 1
    assert "stratified needs a label with every sample" in refused.stderr
