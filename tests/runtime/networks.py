"""Small networks for the tests of the host runtime."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

SHAPE = (1, 8, 12, 10)
"""Every dimension differs, so that a wrong permutation shows."""


class Chain(nn.Module):
    """Two convolutions with something between them."""

    def __init__(self, between: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.first = nn.Conv2d(8, 16, 3, padding=1)
        self.between = between
        self.second = nn.Conv2d(16, 8, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.second(self.between(F.relu(self.first(x))))
        return result


class TwoInTwoOut(nn.Module):
    """Inputs and outputs of different shapes, in one partition."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(8, 16, 3, padding=1)
        self.second = nn.Conv2d(16, 16, 1)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = F.relu(self.first(x))
        return self.second(hidden + y), F.max_pool2d(hidden, 2)


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "plain": lambda: Chain(lambda x: x + x),
    # Neither NPU backend takes a top k: the network is torn into partitions with kernels between them.
    "torn": lambda: Chain(lambda x: torch.topk(x, x.shape[3], dim=3)[0]),
    "two": TwoInTwoOut,
}


def samples_for(network: str, channels_last: bool) -> list[tuple[torch.Tensor, ...]]:
    """Eight samples, always the same."""
    generator = torch.Generator().manual_seed(7)
    shapes = [SHAPE, (1, 16, 12, 10)] if network == "two" else [SHAPE]
    layout = torch.channels_last if channels_last else torch.contiguous_format
    return [
        tuple(torch.randn(shape, generator=generator).contiguous(memory_format=layout) for shape in shapes)
        for _ in range(8)
    ]
