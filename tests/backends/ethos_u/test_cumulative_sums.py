"""Cumulative sums behind functions that Arm's backend turns into tables."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from lowerdeck.artifacts import paths
from tests.runtime.lowering import lower


class Summing(nn.Module):
    """A convolution, a function, a linear layer and a cumulative sum: float32 [1 x 1 x 6 x 8] -> [1 x 4 x 6 x 5]."""

    def __init__(self, function: nn.Module) -> None:
        super().__init__()
        self.convolution, self.linear = nn.Conv2d(1, 4, 3, padding=1), nn.Linear(8, 5)
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        summed: torch.Tensor = self.linear(self.function(self.convolution(x))).cumsum(-1) * 0.25
        return summed


@pytest.mark.parametrize("function", [nn.Tanh(), pytest.param(nn.Sigmoid(), marks=pytest.mark.slow)], ids=str)
def test_a_cumulative_sum_is_computed_on_the_npu(function: nn.Module, tmp_path: Path) -> None:
    torch.manual_seed(0)
    samples = [(2 * torch.randn(1, 1, 6, 8),) for _ in range(4)]
    build = lower(Summing(function), samples, "ethos_u", tmp_path / "build")
    assert build.plan.delegated_compute_nodes == build.plan.compute_nodes
    (scale,) = json.loads((build.folder / paths.MANIFEST).read_text())["output_scales"]
    program = build.open()
    errors = [float((program(*sample)[0] - build.quantized(*sample)).abs().max()) / scale for sample in samples]
    assert max(errors) <= 1.01
