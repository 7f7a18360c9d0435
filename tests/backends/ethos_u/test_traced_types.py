"""Operators that follow, in a quantized program, functions that Arm's backend turns into tables."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from lowerdeck.artifacts import paths
from tests.runtime.lowering import lower

FOLLOWING: dict[str, Callable[[Tensor], Tensor]] = {
    "cumsum": lambda x: x.cumsum(-1) * 0.25,
    "where": lambda x: torch.where(x > 0, x, 0.3 * x),
}


class Following(nn.Module):
    """A convolution, a function, a linear layer and an operator: float32 [1 x 1 x 6 x 8] -> [1 x 4 x 6 x 5]."""

    def __init__(self, function: nn.Module, following: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.convolution, self.linear, self.last = nn.Conv2d(1, 4, 3, padding=1), nn.Linear(8, 5), nn.Linear(5, 5)
        self.function, self.following = function, following

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.last(self.following(self.linear(self.function(self.convolution(x)))))
        return made


@pytest.mark.parametrize("function", [nn.Tanh(), pytest.param(nn.Sigmoid(), marks=pytest.mark.slow)], ids=str)
@pytest.mark.parametrize("following", sorted(FOLLOWING))
def test_the_operator_is_computed_on_the_npu(function: nn.Module, following: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    samples = [(2 * torch.randn(1, 1, 6, 8),) for _ in range(4)]
    build = lower(Following(function, FOLLOWING[following]), samples, "ethos_u85", tmp_path / "build")
    assert build.plan.delegated_compute_nodes == build.plan.compute_nodes
    (scale,) = json.loads((build.folder / paths.MANIFEST).read_text())["output_scales"]
    program = build.open()
    errors = [float((program(*sample)[0] - build.quantized(*sample)).abs().max()) / scale for sample in samples]
    assert max(errors) <= 2.01
