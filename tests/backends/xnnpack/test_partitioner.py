"""lowerdeck.backends.xnnpack.partitioner: operators that XNNPACK's compiler refuses are decomposed."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from benchmarks.in_turns import create
from benchmarks.networks import lowered


class Between(nn.Module):
    """A PReLU between two linear layers."""

    def __init__(self, shape: list[int]) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(shape[-1], 8), nn.PReLU(shape[1] if len(shape) > 2 else 8), nn.Linear(8, 4)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.layers(x)
        return result


@pytest.mark.parametrize("shape", [[4, 8], [1, 8, 12], [1, 8, 6, 5]], ids=["rows", "signal", "image"])
def test_prelu_of_any_rank_is_lowered(shape: list[int]) -> None:
    torch.manual_seed(0)
    drawn = [(1.5 * torch.randn(shape),) for _ in range(12)]
    verdict, detail = lowered(Between(shape).eval(), drawn, create("xnnpack_cpu"))
    assert verdict == "right", detail
    assert "stays on the CPU" not in detail


class OfMean(nn.Module):
    """A layer times the mean of its results, which has no dimensions: float32 [1 x 3 x 12 x 12]."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layer(x)
        return torch.relu(x) * x.mean()


@pytest.mark.parametrize("target", ["xnnpack_cpu", "neutron_imxrt700"])
def test_a_tensor_without_dimensions_is_quantized(target: str) -> None:
    torch.manual_seed(0)
    drawn = [(torch.randn(1, 3, 12, 12),) for _ in range(12)]
    verdict, detail = lowered(OfMean().eval(), drawn, create(target))
    assert verdict == "right", detail
    assert detail.startswith("3 of 4 operators")
    assert "stays on the CPU" not in detail
