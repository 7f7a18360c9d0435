"""lowerdeck.quantization.limits: infinite limits limit nothing, and leave the values their steps."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from benchmarks.in_turns import create
from benchmarks.networks import lowered
from lowerdeck.evaluation.quantization_error import sqnr_db
from tests.marks import quick_first
from tests.networks import quantized_network

_Limit = Callable[["Limited", torch.Tensor], torch.Tensor]


def _running_maximum(network: Limited, y: torch.Tensor) -> torch.Tensor:
    largest = torch.full((1, 8), -torch.inf)
    for each in (y - 5, y - 6):
        largest = torch.maximum(largest, each)
    return largest


LIMITS: dict[str, _Limit] = {
    "clamp": lambda network, y: torch.clamp(y, network.low, network.high),
    "minimum": lambda network, y: torch.minimum(y, network.high),
    "maximum": lambda network, y: torch.maximum(network.low, y),
    "running maximum": _running_maximum,
}


class Limited(nn.Module):
    """Joints, some of which have no limits: float32 [1 x 8] -> [1 x 4]."""

    low: torch.Tensor
    high: torch.Tensor

    def __init__(self, limit: _Limit) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.limit = nn.Linear(8, 8), nn.Linear(8, 4), limit
        self.high = nn.Buffer(torch.tensor([1.0, torch.inf, 2.0, torch.inf, torch.inf, 0.5, 1.0, torch.inf]))
        self.low = nn.Buffer(-self.high.flip(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.last(self.limit(self, 4 * self.first(x)))
        return found


def samples() -> list[tuple[torch.Tensor, ...]]:
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(1, 8, generator=generator),) for _ in range(8)]


@pytest.mark.parametrize("target", quick_first(["ethos_u55_128", "cortex_m55", "neutron_imxrt700", "xnnpack_cpu"], 2))
@pytest.mark.parametrize("name", LIMITS)
def test_what_has_no_limit_keeps_its_values(name: str, target: str) -> None:
    """-256 in place of infinity left -2 to 4 dB on an Ethos-U, and other targets refused the models."""
    network, backend = Limited(LIMITS[name]).eval(), create(target)
    module = quantized_network(network, backend, samples()).module(check_guards=False)
    wanted, found = (torch.stack([each(*sample) for sample in samples()]) for each in (network, module))
    assert sqnr_db(float(wanted.square().sum()), float((wanted - found).square().sum())) > 30


@pytest.mark.parametrize("target", quick_first(["ethos_u55_128", "cortex_m55", "neutron_imxrt700"]))
@pytest.mark.parametrize("name", quick_first(["clamp", "running maximum"]))
def test_it_is_built(name: str, target: str) -> None:
    verdict, detail = lowered(Limited(LIMITS[name]).eval(), samples(), create(target))
    assert verdict == "right", detail
