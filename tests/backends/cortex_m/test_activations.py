"""Activations that CMSIS-NN alone has a kernel for, where its passes do not replace them."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.in_turns import create
from benchmarks.networks import lowered

SHAPE = (1, 4, 8, 10)


class Shared(nn.Module):
    """A concatenation gives its operands one quantization, which does not end at 1."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.other, self.last = nn.Conv2d(4, 6, 3, padding=1), nn.Conv2d(4, 6, 1), nn.Conv2d(12, 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.last(torch.cat([F.hardsigmoid(self.gate(x)), 3 * self.other(x)], 1))
        return found


def test_an_activation_that_is_not_replaced_is_decomposed() -> None:
    """Its layer is not either; the build was refused, and the user had to exclude the operator by its name."""
    torch.manual_seed(0)
    verdict, detail = lowered(Shared().eval(), [(torch.randn(SHAPE),) for _ in range(8)], create("cortex_m55"))
    assert verdict == "right", detail
