"""Networks that backends once computed differently from the quantized model, each in a context where it happened."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from lowerdeck.artifacts import paths
from tests.runtime.lowering import lower


class Around(nn.Module):
    """Two convolutions and what combines them."""

    def __init__(self, combine: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(3, 4, 3, padding=1) for _ in range(2))
        self.combine = combine

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.combine(self.first(x), self.second(x))


def _layer(x: torch.Tensor) -> torch.Tensor:
    """A convolution of [N x 8 x H x W]: what is joined for it has one scale, also where quantities are unlike."""
    return nn.functional.conv2d(x, torch.linspace(-0.5, 0.7, 32).reshape(4, 8, 1, 1))


CASES: dict[str, tuple[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]]] = {
    "a ReLU in a concatenation": ("ethos_u", lambda a, b: torch.cat([a, torch.relu(b)], 1)),
    "a ReLU6 in a concatenation": ("ethos_u", lambda a, b: torch.cat([4 * a, nn.functional.relu6(b)], 1)),
    "a clipped convolution in a concatenation": (
        "ethos_u",
        lambda a, b: _layer(torch.cat([a, nn.functional.hardtanh(b, 0.0, 0.25)], 1)),
    ),
    "a ReLU in a maximum": ("ethos_u", lambda a, b: torch.maximum(a, torch.relu(b))),
    "a ReLU that is stacked": ("ethos_u", lambda a, b: torch.stack([a, torch.relu(b)], 1)),
    "a ReLU in a concatenation, Neutron": ("neutron", lambda a, b: torch.cat([a, torch.relu(b)], 1)),
    "a sigmoid behind a convolution": ("neutron", lambda a, b: torch.sigmoid(4 * a) + torch.sigmoid(b)),
    "a gate": ("neutron", lambda a, b: a * torch.sigmoid(b)),
    "a tanh behind a convolution": ("neutron", lambda a, b: torch.tanh(a) + b),
    "tanh in a concatenation": ("neutron", lambda a, b: torch.cat([torch.tanh(a), torch.tanh(b)], 1)),
    "a product of two layers": ("neutron", lambda a, b: 3 * (a * b)),
    "a sigmoid in a concatenation": ("neutron", lambda a, b: _layer(torch.cat([torch.sigmoid(a), b], 1))),
    "a pooled sigmoid": ("neutron", lambda a, b: nn.functional.max_pool2d(torch.sigmoid(a), 2) - 1),
    "a negated sigmoid": ("neutron", lambda a, b: -torch.sigmoid(a) + b),
    "an exponential function": ("neutron", lambda a, b: torch.exp(0.5 * a) + b),
    "a pooling with two users": (
        "neutron",
        lambda a, b: (lambda pooled: pooled + torch.relu(pooled))(nn.functional.max_pool2d(torch.relu(a), 3, 2, 1)),
    ),
    "a ReLU in a concatenation, XNNPACK": ("xnnpack", lambda a, b: torch.cat([a, torch.relu(b)], 1)),
    "a gate, XNNPACK": ("xnnpack", lambda a, b: a * torch.sigmoid(b)),
}


QUICK = ("a ReLU in a concatenation", "a ReLU6 in a concatenation", "a tanh behind a convolution")
"""Two cases of Ethos-U, one with a factor behind a layer, and one of Neutron; `make test-all` has other faults, and the
same in other contexts."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in CASES]
)
def test_the_program_computes_the_quantized_model(name: str, tmp_path: Path) -> None:
    target, combine = CASES[name]
    torch.manual_seed(0)
    samples = [(2 * torch.randn(1, 3, 8, 8),) for _ in range(4)]
    build = lower(Around(combine), samples, target, tmp_path / "build")
    assert build.plan.delegated_compute_nodes > 0
    (scale,) = json.loads((build.folder / paths.MANIFEST).read_text())["output_scales"]
    program = build.open()
    errors = [float((program(*sample)[0] - build.quantized(*sample)).abs().max()) / scale for sample in samples]
    assert max(errors) <= 2.01  # two roundings at most follow each other here
