"""A Cortex-M beneath an NPU through DVC: built once, the same bytes elsewhere, and the same story in every report."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.project import Project, tail

UNTIL_CONVERT = ("compose", "export", "calibrate", "quantize", "partition", "convert")
PLUGIN = '''"""What NPUs leave: a long stride, GELU, layer norm, odd groups."""

import torch
from torch import nn
from torch.nn import functional as F


class Awkward(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 12, 3, padding=1), nn.ReLU())
        self.far = nn.Conv2d(12, 12, 5, stride=4, padding=2)
        self.odd = nn.Conv2d(12, 18, 3, padding=1, groups=3)
        self.norm, self.head = nn.LayerNorm(18), nn.Linear(18, 10)

    def forward(self, x):
        x = F.gelu(self.far(self.stem(x)))
        x = F.max_pool2d(F.gelu(self.odd(x)), 3, 2, 1)
        return self.head(self.norm(x.mean((2, 3))))
'''


def awkward(project: Project, target: str) -> Project:
    (project.root / "plugins").mkdir(exist_ok=True)
    (project.root / "plugins" / "awkward.py").write_text(PLUGIN)
    model = {"options": {"factory": "plugins.awkward:Awkward"}, "input_shapes": [[1, 3, 24, 36]]}
    gates = {"metrics": {"max_portable_macs": 0}}
    project.edit_params(
        model="custom", dataset="random", task="fidelity", target=target, plugins=["plugins.awkward"],
        overrides={"model": model, "target": {"fallback": "cortex_m55"}, "gates": gates},
    )  # fmt: skip
    return project


def metrics_of(project: Project) -> dict[str, float]:
    found: dict[str, float] = json.loads((project.root / "build" / "evaluate" / "metrics.json").read_text())
    return found


@pytest.mark.slow
@pytest.mark.parametrize("target", ["ethos_u55_128", "neutron_imxrt700"])
def test_a_fallback_is_built_by_dvc_and_the_same_elsewhere(
    make_project: Callable[[str], Project], tmp_path: Path, target: str
) -> None:
    project = awkward(make_project("fallback"), target)
    done = project.dvc("repro", timeout_s=900)
    assert done.returncode == 0, tail(done.stdout + done.stderr)
    assert "Running stage" not in project.dvc("repro").stdout
    metrics = metrics_of(project)
    assert metrics["portable_macs"] == 0
    assert min(metrics["npu_macs"], metrics["npu_compute_nodes"], metrics["cmsis_nn_compute_nodes"]) > 0
    explained = project.run(sys.executable, "-m", "lowerdeck.cli", "explain")
    assert explained.returncode == 0, tail(explained.stderr)
    assert "on CMSIS-NN" in explained.stdout

    other = awkward(make_project("elsewhere"), target)
    for name in UNTIL_CONVERT:
        done = other.stage(name, LOWERDECK_PRELOAD="0", PYTHONHASHSEED="77", OMP_NUM_THREADS="3")
        assert done.returncode == 0, (name, tail(done.stderr))
    program = Path("build", "convert", "program.pte")
    assert (other.root / program).read_bytes() == (project.root / program).read_bytes()
