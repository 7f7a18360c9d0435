"""ResNet-8, the image classification network of the MLPerf Tiny benchmark.

Topology after the benchmark's reference model (Banbury et al., "MLPerf Tiny Benchmark", NeurIPS 2021 Datasets and
Benchmarks; mlcommons/tiny, benchmark/training/image_classification), which is ResNet v1 (He et al., 2016) with one
block in each of three stacks. Rewritten in PyTorch; two details differ from the Keras reference: the shortcut
convolutions carry a batch norm as in He et al., and there is no softmax, because quantization and metrics want logits.
"""

from __future__ import annotations

import torch
from torch import nn


class ResNet8(nn.Module):
    """Three residual stacks of 16, 32 and 64 channels on [b x 3 x 32 x 32]; about 78,000 parameters."""

    def __init__(self, num_classes: int = 10, in_channels: int = 3) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(in_channels, 16, kernel_size=3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()
        )
        self.stack1 = ResidualBlock(16, 16, stride=1)
        self.stack2 = ResidualBlock(16, 32, stride=2)
        self.stack3 = ResidualBlock(32, 64, stride=2)
        # An explicit 8x8 window, as in the reference: backends map it directly, an adaptive pool only sometimes.
        self.pool = nn.AvgPool2d(kernel_size=8, stride=8)
        self.flatten = nn.Flatten()
        self.classifier = nn.Linear(64, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits of a batch of images.

        Args:
            x (torch.Tensor): float32 images, shape [b x in_channels x 32 x 32]

        Returns:
            torch.Tensor: float32 logits, shape [b x num_classes]
        """
        x = self.stack3(self.stack2(self.stack1(self.stem(x))))
        logits: torch.Tensor = self.classifier(self.flatten(self.pool(x)))
        return logits


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions with a shortcut: the identity, or a 1x1 convolution where the shape changes."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(in_channels, out_channels, kernel_size=3, stride=stride, padding=1, bias=False),
            nn.BatchNorm2d(out_channels),
            nn.ReLU(),
            nn.Conv2d(out_channels, out_channels, kernel_size=3, padding=1, bias=False),
            nn.BatchNorm2d(out_channels),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or in_channels != out_channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(in_channels, out_channels, kernel_size=1, stride=stride, bias=False),
                nn.BatchNorm2d(out_channels),
            )
        # A module of its own for this second ReLU: quantizers give one module used twice a shared observer.
        self.relu = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """float32 [b x in_channels x h x w] -> float32 [b x out_channels x h/stride x w/stride]."""
        out: torch.Tensor = self.relu(self.body(x) + self.shortcut(x))
        return out
