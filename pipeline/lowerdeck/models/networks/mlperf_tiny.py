"""The networks of the MLPerf Tiny benchmark beside ResNet-8: images, keywords, machine sounds and a wake word.

Topologies after the reference models (Banbury et al., "MLPerf Tiny Benchmark", NeurIPS 2021 Datasets and Benchmarks;
mlcommons/tiny, benchmark/training), rewritten in PyTorch. Keras pads layers of stride 2 at their end, as these do;
those in executorch's examples/models/mlperf_tiny pad both sides alike. Two details differ from the references, and not
in what they compute: convolutions have no bias of their own before a batch norm, which has one, and there is no softmax
at the end, because quantization and metrics want logits.
"""

from __future__ import annotations

import torch
from torch import nn


class MobileNetV1(nn.Module):
    """MobileNetV1 of width 0.25 on [b x 3 x 96 x 96], for visual wake words; about 213,000 parameters."""

    def __init__(self, num_classes: int = 2) -> None:
        super().__init__()
        strides_and_channels = (
            (1, 16), (2, 32), (1, 32), (2, 64), (1, 64), (2, 128), *((1, 128),) * 5, (2, 256), (1, 256),
        )  # fmt: skip
        self.stem = nn.Sequential(*convolution(3, 8, kernel_size=(3, 3), stride=2, padding=(0, 1, 0, 1)))
        blocks, channels = [], 8
        for stride, width in strides_and_channels:
            padding = (1, 1, 1, 1) if stride == 1 else (0, 1, 0, 1)
            blocks.append(separable(channels, width, kernel_size=(3, 3), stride=stride, padding=padding))
            channels = width
        self.blocks = nn.Sequential(*blocks)
        self.pool = nn.AvgPool2d(kernel_size=3)
        self.flatten = nn.Flatten()
        self.classifier = nn.Linear(channels, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """float32 images [b x 3 x 96 x 96] -> float32 logits [b x num_classes]."""
        logits: torch.Tensor = self.classifier(self.flatten(self.pool(self.blocks(self.stem(x)))))
        return logits


class DsCnn(nn.Module):
    """Depthwise separable CNN on [b x 1 x 49 x 10], 49 frames of 10 MFCCs, for keywords; about 23,000 parameters."""

    def __init__(self, num_classes: int = 12) -> None:
        super().__init__()
        self.stem = nn.Sequential(*convolution(1, 64, kernel_size=(10, 4), stride=2, padding=(1, 1, 4, 5)))
        same = (1, 1, 1, 1)
        self.blocks = nn.Sequential(
            nn.Dropout(0.2), *(separable(64, 64, kernel_size=(3, 3), stride=1, padding=same) for _ in range(4)),
            nn.Dropout(0.4),
        )  # fmt: skip
        # 24 of the 25 rows, as in the reference, which takes half of 49 frames.
        self.pool = nn.AvgPool2d(kernel_size=(24, 5))
        self.flatten = nn.Flatten()
        self.classifier = nn.Linear(64, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """float32 features [b x 1 x 49 x 10] -> float32 logits [b x num_classes]."""
        logits: torch.Tensor = self.classifier(self.flatten(self.pool(self.blocks(self.stem(x)))))
        return logits


class DeepAutoencoder(nn.Module):
    """Reconstructs [b x 640], five frames of 128 log-mel energies, for machine sounds; about 270,000 parameters."""

    def __init__(self, num_features: int = 640) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        before = num_features
        for width in (128, 128, 128, 128, 8, 128, 128, 128, 128):
            layers += [nn.Linear(before, width), nn.BatchNorm1d(width), nn.ReLU()]
            before = width
        self.layers = nn.Sequential(*layers)
        self.output = nn.Linear(before, num_features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """float32 features [b x num_features] -> their reconstruction, float32 of the same shape."""
        reconstruction: torch.Tensor = self.output(self.layers(x))
        return reconstruction


WAKE_WORD_BLOCKS = ((3, 128), (5, 128), (10, 128), (15, 32))
"""Frames that each block of the wake word network sees, and its channels."""


class WakeWord(nn.Module):
    """Separable convolutions over time on [b x 40 x 30 x 1], 30 frames of 40 log-mel energies: about 45,000 parameters.

    It is called with the last 30 frames whenever a frame comes in, and computes most of it again each time;
    `StreamingWakeWord` is the same function with the same weights, called with one frame.
    """

    def __init__(self, num_classes: int = 3, num_features: int = 40) -> None:
        super().__init__()
        blocks, channels = [], num_features
        for frames, width in WAKE_WORD_BLOCKS:
            blocks.append(TimeBlock(channels, width, frames))
            channels = width
        self.blocks = nn.ModuleList(blocks)
        self.flatten = nn.Flatten()
        self.classifier = nn.Linear(channels, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """float32 features [b x num_features x 30 x 1] -> float32 logits [b x num_classes]."""
        for block in self.blocks:
            x = block(x)
        logits: torch.Tensor = self.classifier(self.flatten(x))
        return logits


class StreamingWakeWord(nn.Module):
    """`WakeWord` on one frame [1 x 40 x 1 x 1]: each block keeps the frames that it will see again (docs/state.md)."""

    def __init__(self, num_classes: int = 3, num_features: int = 40) -> None:
        super().__init__()
        window = WakeWord(num_classes, num_features)
        self.blocks, self.flatten, self.classifier = window.blocks, window.flatten, window.classifier
        channels = num_features
        for number, (frames, width) in enumerate(WAKE_WORD_BLOCKS):
            self.register_buffer(f"frames_{number}", torch.zeros(1, channels, frames - 1, 1), persistent=False)
            channels = width

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """float32 features [1 x num_features x 1 x 1] -> float32 logits [1 x num_classes]."""
        for number, block in enumerate(self.blocks):
            kept = getattr(self, f"frames_{number}")
            seen = torch.cat([kept, x], dim=2)
            kept.copy_(seen[:, :, 1:])
            x = block(seen)
        logits: torch.Tensor = self.classifier(self.flatten(x))
        return logits


class TimeBlock(nn.Module):
    """A depthwise convolution over `frames` frames, without padding, and a pointwise one."""

    def __init__(self, in_channels: int, out_channels: int, frames: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(in_channels, in_channels, (frames, 1), groups=in_channels, bias=False)
        self.pointwise = nn.Conv2d(in_channels, out_channels, 1, bias=False)
        self.norm = nn.BatchNorm2d(out_channels)
        self.relu = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """float32 [b x in_channels x t x 1] -> float32 [b x out_channels x t - frames + 1 x 1]."""
        out: torch.Tensor = self.relu(self.norm(self.pointwise(self.depthwise(x))))
        return out


def convolution(
    in_channels: int,
    out_channels: int,
    *,
    kernel_size: tuple[int, int],
    stride: int = 1,
    padding: tuple[int, int, int, int] = (0, 0, 0, 0),
    groups: int = 1,
) -> list[nn.Module]:
    """A convolution with batch norm and ReLU.

    Args:
        in_channels: Channels of the input.
        out_channels: Channels of the output.
        kernel_size: Height and width.
        stride: In both directions.
        padding: Zeros at the left, right, top and bottom; where sides differ, a layer of its own adds them.
        groups: As in nn.Conv2d.
    """
    left, right, top, bottom = padding
    is_even = left == right and top == bottom
    convolved = nn.Conv2d(
        in_channels, out_channels, kernel_size, stride, (top, left) if is_even else 0, groups=groups, bias=False
    )
    before: list[nn.Module] = [] if is_even else [nn.ZeroPad2d(padding)]
    return [*before, convolved, nn.BatchNorm2d(out_channels), nn.ReLU()]


def separable(
    in_channels: int,
    out_channels: int,
    *,
    kernel_size: tuple[int, int],
    stride: int,
    padding: tuple[int, int, int, int],
) -> nn.Sequential:
    """A depthwise and a pointwise convolution, each with batch norm and ReLU."""
    depthwise = convolution(
        in_channels, in_channels, kernel_size=kernel_size, stride=stride, padding=padding, groups=in_channels
    )
    return nn.Sequential(*depthwise, *convolution(in_channels, out_channels, kernel_size=(1, 1)))
