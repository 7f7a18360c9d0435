"""Stages with schemes that build the model again, as a user runs them: each in a process of its own."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest
from safetensors.numpy import load_file

from lowerdeck.fingerprints import data
from tests.project import Project, tail

LEVEL = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("level", torch.zeros(1, 4))

    def forward(self, x):
        level = 0.9 * self.level + x
        self.level.copy_(level)
        return self.layer(level)
"""
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
    report = json.loads((build / "quantize" / "report.json").read_text())["tensors"]
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


@pytest.mark.slow
def test_a_model_with_state_is_calibrated_on_the_stored_stream(make_project: Callable[[str], Project]) -> None:
    """Its samples came shuffled: a level that rises to 10 over the stream stayed below 5, and the `.pte` saturated."""
    project = make_project("level")
    (project.root / "plugins" / "level.py").write_text(LEVEL)
    phase = np.arange(200)[:, np.newaxis] * 2 * np.pi / 200 + np.arange(4) / 100
    stored = np.sin(phase).astype(np.float32)
    files = {name: f"data/inputs/{name}.npz" for name in ("calibration", "evaluation")}
    for name, values in zip(files, (stored, 0.5 * stored), strict=True):
        np.savez(project.root / files[name], inputs=values)
    project.edit_params(
        model="custom", dataset="arrays", task="fidelity", target="xnnpack_cpu", plugins=["plugins.level"],
        overrides={
            "model": {"options": {"factory": "plugins.level:Net"}, "input_shapes": [[1, 4]]},
            "dataset": {"options": files}, "quantization": {"num_calibration_samples": 100},
        },
    )  # fmt: skip
    for name in ("compose", "export", "calibrate", "quantize"):
        done = project.stage(name, LOWERDECK_PRELOAD="0")
        assert done.returncode == 0, (name, tail(done.stderr))
    build = project.root / "build"
    samples = json.loads((build / "calibrate" / "samples.json").read_text())
    assert samples == [data.array_digest([row.tobytes()]) for row in stored[:100]]
    report = json.loads((build / "quantize" / "report.json").read_text())["tensors"]
    highest = max(entry["observed"]["maximum"] for entry in report if not entry["is_constant"])
    level, levels = np.zeros(4, np.float32), []
    for row in stored[:100]:
        level = 0.9 * level + row
        levels.append(level.max())
    assert highest > 0.95 * max(levels)
    checked = load_file(build / "calibrate" / "check_inputs.safetensors")
    assert all(np.array_equal(value, stored[int(name.split(".")[0])][np.newaxis]) for name, value in checked.items())
