"""Partitions that return one of their inputs."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmarks.in_turns import create
from benchmarks.networks import lowered


class Copied(nn.Module):
    """A copy of the input beside a layer: float32 [1 x 8] -> [1 x 8] and [1 x 4]."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x.clone(), self.layer(x)


def test_a_partition_may_return_its_input() -> None:
    """Vela refused it, so that the copy stayed on the CPU after a message."""
    torch.manual_seed(0)
    verdict, detail = lowered(Copied().eval(), [(torch.randn(1, 8),) for _ in range(6)], create("ethos_u55_128"))
    assert verdict == "right", detail
    assert detail.startswith("2 of 2 operators delegated")
    assert "Vela" not in detail
