"""Every target builds the same bytes in another folder, process and environment."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from lowerdeck.artifacts import paths
from tests.conftest import TARGETS
from tests.project import AWKWARD_FOLDER, Project, digests, tail

NETWORK = '''
import torch
from torch import nn


class Net(nn.Module):
    """A tensor with three users, a concatenation, two outputs, and an operator for the CPU at two ranks."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.left, self.right = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.mix = nn.Conv2d(16, 8, 1)
        self.head = nn.Linear(8, 10)

    def forward(self, x):
        x = torch.relu(self.stem(x))
        both = torch.cat([self.left(x), torch.relu(self.right(x))], 1)
        y = torch.trunc(4 * self.mix(both)) + x
        scores = self.head(torch.trunc(8 * nn.functional.adaptive_avg_pool2d(y, 1).flatten(1)))
        return scores, torch.trunc(scores)
'''
OPTIONS = {"ethos_u55_128": {"debug_info": "JSON"}}
"""Options of the target that make it write more files."""


def configured(project: Project, target: str) -> Project:
    (project.root / "plugins" / "net.py").write_text(NETWORK)
    model = {"options": {"factory": "plugins.net:Net"}, "input_shapes": [[1, 3, 32, 32]]}
    project.edit_params(
        model="custom",
        dataset="random",
        target=target,
        plugins=["plugins.net"],
        overrides={"model": model, "target": {"options": OPTIONS.get(target, {})}},
    )
    return project


def made(project: Project) -> dict[str, str]:
    """Digests of what the build made; where its own MLflow database keeps the run is no output."""
    found = digests(project.root / "build")
    assert found.pop(paths.MLFLOW_RUN.name)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_the_same_bytes_come_out(make_project: Callable[[str], Project], tmp_path: Path, target: str) -> None:
    first, second = (configured(make_project(name), target) for name in ("first", AWKWARD_FOLDER))
    for done in (first.dvc("repro", timeout_s=900, PYTHONHASHSEED="1"), second.repro_elsewhere(tmp_path / "home")):
        assert done.returncode == 0, tail(done.stdout + done.stderr)
    listed = yaml.safe_load((first.root / "build/firmware/selected_operators.yaml").read_text())
    assert any(len(kernels) > 1 for kernels in listed["et_kernel_metadata"].values())  # else it would show nothing
    outputs = made(first)
    assert {name for name in outputs if name.endswith((".pt2", ".pte"))} > {"convert/program.pte"}
    assert made(second) == outputs
    assert (second.root / "dvc.lock").read_bytes() == (first.root / "dvc.lock").read_bytes()
