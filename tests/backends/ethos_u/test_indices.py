"""Indices that Arm's passes have changed are those that kernels of the CPU take."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from benchmarks.in_turns import create
from benchmarks.networks import lowered
from tests.marks import quick_first
from tests.networks import Called


@pytest.mark.parametrize(
    "function",
    quick_first(
        [
            lambda x: torch.gather(x, 3, torch.arange(8).flip(0).expand(1, 4, 8, 8)),
            lambda x: torch.scatter(x, 3, torch.arange(4).expand(1, 4, 8, 4) * 2, x[..., :4]),
            lambda x: torch.scatter(x, 3, torch.arange(4).expand(1, 4, 8, 4) * 2, 0.5),
            lambda x: torch.scatter_add(x, 3, torch.arange(4).expand(1, 4, 8, 4) * 2, x[..., :4]),
        ],
        quick=2,
    ),
)
def test_constant_indices_have_64_bits(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """As in DeBERTa's relative positions."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), Called(function), nn.Conv2d(4, 4, 3)).eval()
    verdict, detail = lowered(network, [(torch.randn(1, 3, 8, 8),) for _ in range(8)], create("ethos_u85_256"))
    assert verdict == "right", detail
