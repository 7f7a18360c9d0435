"""lowerdeck.backends.ethos_u.partitioner: what Arm's compiler fails on stays on the CPU, without a search for it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.in_turns import create
from benchmarks.networks import lowered
from tests.backends.ethos_u.lowering import U55
from tests.marks import quick_first
from tests.networks import Called


@pytest.mark.parametrize(
    ("function", "delegated"),
    quick_first(
        [
            (lambda x: torch.relu(x - x.mean()), "5 of 6"),
            (lambda x: x[0, 0, 0, 0] + x, "5 of 6"),
            (lambda x: x / x.norm(), "5 of 6"),
            (lambda x: x.mean() * x.amax(), "4 of 6"),
        ],
        quick=2,
    ),
)
def test_the_rest_of_a_network_with_a_scalar_is_delegated_at_once(
    function: Callable[[torch.Tensor], torch.Tensor], delegated: str
) -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 8, 3), Called(function)).eval()
    verdict, detail = lowered(network, [(torch.randn(1, 3, 8, 8),) for _ in range(8)], create(U55))
    assert verdict == "right", detail
    assert detail.startswith(f"{delegated} operators delegated")
    assert "not compiled" not in detail


class Correlation(nn.Module):
    """What trackers compute: features of a template are the weights, here a depthwise layer's."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.head = nn.Conv2d(8, 4, 1)

    def forward(self, template: torch.Tensor, image: torch.Tensor) -> torch.Tensor:
        """Scores [1, 4, h, w]."""
        weights, pixels = torch.relu(self.features(template)), torch.relu(self.features(image))
        scores: torch.Tensor = self.head(F.conv2d(pixels, weights.view(8, 1, *weights.shape[2:]), groups=8))
        return scores


class Written(nn.Module):
    """Weights are state, and the bias of a second layer is computed."""

    weights: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(6, 4)
        self.register_buffer("weights", torch.randn(6, 8) / 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Four values, with weights that the calls before made."""
        given = torch.tanh(self.first(x))
        values = F.linear(given, self.weights)
        self.weights.copy_(0.8 * self.weights + 0.2 * given.expand(6, 8))
        return F.linear(values, self.second.weight, given[0, :4])


@pytest.mark.parametrize(
    ("network", "shapes", "delegated"),
    [(Correlation(), [(1, 3, 8, 8), (1, 3, 16, 16)], "6 of 7"), (Written(), [(1, 8)], "8 of 10")],
    ids=["correlation", "state_and_bias"],
)
def test_the_rest_of_a_network_with_computed_weights_is_delegated_at_once(
    network: nn.Module, shapes: list[tuple[int, ...]], delegated: str
) -> None:
    torch.manual_seed(0)
    drawn = [tuple(torch.randn(shape) for shape in shapes) for _ in range(8)]
    verdict, detail = lowered(network.eval(), drawn, create(U55))
    assert verdict == "right", detail
    assert detail.startswith(f"{delegated} operators delegated")
    assert "not compiled" not in detail
