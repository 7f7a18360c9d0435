"""lowerdeck.backends.xnnpack.backend: dimensions are those of the model, also where data are channels-last."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from lowerdeck.steps.export import export
from tests.backends.xnnpack.test_options import build
from tests.marks import quick_first
from tests.steps.test_convert_conforming import quantized_for

SHAPE = (1, 3, 8, 8)


class Between(nn.Module):
    """A function of two convolutions, or of one, in front of another one."""

    def __init__(self, function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.function = function
        self.first, self.second = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(3, 6, 3, padding=1)
        self.last = nn.Conv2d(6, 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.last(self.function(self.first(x), self.second(x)))
        return result


FUNCTIONS = {
    "softmax": lambda a, b: torch.softmax(a, -1),
    "softmax of what another operator reads": lambda a, b: (a + b) * torch.softmax(a, 3),
    "softmax of a concatenation": lambda a, b: torch.cat([a, b], -1).softmax(-1)[..., :8],
    "product with a softmax": lambda a, b: a @ b.softmax(-1),
    "concatenation": lambda a, b: torch.cat([a, b], -2),
    "part": lambda a, b: a[..., 1:5],
    "permutation": lambda a, b: a.permute(0, 1, 3, 2),
    "padding": lambda a, b: nn.functional.pad(a, (1, 0, 0, 2)),
    "mean": lambda a, b: a.mean((2, 3), keepdim=True) + a,
    "maximum": lambda a, b: a.amax(2, keepdim=True) + a,
    "reshaping": lambda a, b: a.reshape(1, 8, 6, 8).relu().reshape(1, 6, 8, 8),
    "layer norm": lambda a, b: nn.functional.layer_norm(a, (8,)),
}


@pytest.mark.parametrize("name", quick_first(FUNCTIONS, 2))
@pytest.mark.parametrize("scheme", ["float32", "int8"])
def test_dimensions_behind_a_convolution_are_those_of_the_model(scheme: str, name: str, tmp_path: Path) -> None:
    """A softmax over the last dimension was computed over the channels: up to 0.6 off."""
    network = Between(FUNCTIONS[name]).eval()
    samples: list[tuple[torch.Tensor, ...]] = [(2 * torch.randn(*SHAPE),) for _ in range(4)]
    if scheme == "float32":
        program = export(network, [list(SHAPE)])
    else:
        program, _ = quantized_for("xnnpack_cpu", network, samples, scheme)
    made = build(program, tmp_path, SHAPE)
    assert made.error <= (1e-5 if scheme == "float32" else 0.06), name
    assert all(made.delegated("aten._softmax.default"))
