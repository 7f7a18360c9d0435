"""Negation of what shares a wider range."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmarks.in_turns import create
from benchmarks.networks import lowered


class Transmittance(nn.Module):
    """Rendering along a ray, which leaves out the last and largest sum: float32 [1 x 8 x 3] -> [1 x 8]."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        passed = torch.cumsum(torch.relu(self.layer(x)).sum(-1), 1)
        return torch.exp(-nn.functional.pad(passed, (1, -1)))


def test_a_negative_has_a_scale_of_its_own() -> None:
    """The operand's was that of the cropped sum, too; 31 steps off, which convert found and left to the CPU."""
    torch.manual_seed(0)
    verdict, detail = lowered(
        Transmittance().eval(), [(torch.rand(1, 8, 3),) for _ in range(8)], create("ethos_u55_128")
    )
    assert verdict == "right", detail
    delegated, count = detail.partition(" operators")[0].split(" of ")
    assert delegated == count, detail
