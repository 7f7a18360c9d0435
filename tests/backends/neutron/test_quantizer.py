"""lowerdeck.backends.neutron.quantizer: operators in the form that NXP's converters read."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.in_turns import create
from benchmarks.networks import lowered


class Pooled(nn.Module):
    """Average pooling without a stride, with and without further arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = self.convolution(x)
        return F.avg_pool2d(y, 3), F.avg_pool2d(y, 2, padding=1), F.avg_pool1d(y[:, :, 0], 2)


def test_average_pooling_without_a_stride_is_delegated() -> None:
    torch.manual_seed(0)
    verdict, detail = lowered(
        Pooled().eval(), [(torch.randn(1, 4, 9, 9),) for _ in range(8)], create("neutron_imxrt700")
    )
    assert verdict == "right", detail
    assert "stays on the CPU" not in detail
