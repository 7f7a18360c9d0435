"""A build that this host cannot execute comes to its end, and says everywhere that it must not ship."""

from __future__ import annotations

import json
import re
import sys
import zipfile
from collections.abc import Callable

import pytest
from mlflow.tracking import MlflowClient

from tests.project import Project, tail

NETWORK = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, stride=2, padding=1)

    def forward(self, x):
        means = torch.relu(self.stem(x)).mean((2, 3))
        return means.scatter_reduce(1, torch.arange(8).flip(0)[None], means, "amax")
"""
CAUSE = "the installed ExecuTorch runtime lacks operators of the program, aten::scatter_reduce.two"


@pytest.mark.slow
def test_a_program_without_a_bundle_is_evaluated_and_recorded(make_project: Callable[[str], Project]) -> None:
    project = make_project("defect")
    (project.root / "plugins" / "net.py").write_text(NETWORK)
    model = {"options": {"factory": "plugins.net:Net"}, "input_shapes": [[1, 3, 16, 16]]}
    random, accepted = {"options": {"num_classes": 8}}, {"conformance": {"on_mismatch": "warn"}}
    project.edit_params(
        model="custom", dataset="random", target="xnnpack_cpu", plugins=["plugins.net"],
        overrides={"model": model, "dataset": random},
    )  # fmt: skip
    refused = project.dvc("repro")
    assert refused.returncode != 0
    assert re.search(
        r"no CPU kernel aten::scatter_reduce\.two_out, which computes .*net\.py:\d+", refused.stdout + refused.stderr
    )
    project.edit_params(overrides={"model": model, "dataset": random, "evaluation": accepted})
    done = project.dvc("repro")
    assert done.returncode == 0, tail(done.stdout + done.stderr)
    assert f"firmware: there is no bundle for this program: {CAUSE}" in done.stdout
    build = project.root / "build"
    metrics = json.loads((build / "evaluate/metrics.json").read_text())
    assert metrics["delegated_accuracy"] == "not measured"
    assert metrics["quantized_sqnr_db"] > 0
    for name in ("delegated_failure", "firmware_failure"):
        assert metrics[name].startswith(CAUSE)
    with zipfile.ZipFile(build / "firmware.zip") as archive:
        assert CAUSE in archive.read("firmware/README.md").decode()
    client = MlflowClient(f"sqlite:///{project.root}/mlflow/mlflow.db")
    (experiment,) = (found for found in client.search_experiments() if found.name == "lowerdeck")
    (run,) = client.search_runs([experiment.experiment_id])
    assert f"has no firmware bundle: {CAUSE}" in run.data.tags["defects"]
    refused = project.run(sys.executable, "-m", "lowerdeck.cli", "promote", run.info.run_id)
    assert refused.returncode == 1
    assert "must not ship: " in refused.stderr
    assert "was not executed on this host" in refused.stderr
    for command in (["report"], ["compare", "workspace", run.info.run_id]):
        shown = project.run(sys.executable, "-m", "lowerdeck.cli", *command)
        assert shown.returncode == 0, shown.stderr
        assert "do not ship" in shown.stdout
        assert CAUSE in " ".join(shown.stdout.split())
