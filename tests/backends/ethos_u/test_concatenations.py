"""Concatenations that read a tensor more than once, such as a grey image for a network of colour images."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from lowerdeck.artifacts import paths
from tests.runtime.lowering import lower


class Grey(nn.Module):
    """An image three times, and a convolution: float32 [1 x 1 x 8 x 8] -> [1 x 4 x 8 x 8]."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.convolution(torch.cat([x, x, x], 1))
        return made


class Upsampled(nn.Module):
    """A channel, its negative and itself again, upsampled: float32 [1 x 1 x 8 x 8] -> [1 x 3 x 16 x 16]."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.interpolate(
            torch.cat([x, -x, x], 1), scale_factor=2.0, mode="bilinear", align_corners=False
        )


@pytest.mark.parametrize(
    ("network", "target"),
    [pytest.param(Grey, "ethos_u"), pytest.param(Upsampled, "ethos_u85", marks=pytest.mark.slow)],
)
def test_no_input_is_lost(network: type[nn.Module], target: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    samples = [(torch.randn(1, 1, 8, 8),) for _ in range(4)]
    build = lower(network(), samples, target, tmp_path / "build")
    assert build.plan.delegated_compute_nodes == build.plan.compute_nodes
    (scale,) = json.loads((build.folder / paths.MANIFEST).read_text())["output_scales"]
    program = build.open()
    errors = [float((program(*sample)[0] - build.quantized(*sample)).abs().max()) / scale for sample in samples]
    assert max(errors) <= 1.01
