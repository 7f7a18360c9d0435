"""A model of your own: `model: tiny_net` in params.yaml builds it."""

from __future__ import annotations

import torch
from torch import nn


class TinyNet(nn.Module):
    """Two strided convolutions and a linear layer on float32 [b x 3 x 32 x 32]."""

    def __init__(self, num_classes: int = 10, width: int = 16) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, width, kernel_size=3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, kernel_size=3, stride=2, padding=1),
            nn.ReLU(),
            nn.AvgPool2d(kernel_size=8, stride=8),
            nn.Flatten(),
            nn.Linear(2 * width, num_classes),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Images [b x 3 x 32 x 32] -> class scores [b x num_classes]."""
        scores: torch.Tensor = self.layers(x)
        return scores
