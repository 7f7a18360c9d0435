"""lowerdeck.backends.neutron.quantizer: operators in the form that NXP's converters read."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.in_turns import create
from benchmarks.networks import lowered
from tests.networks import Called


class Pooled(nn.Module):
    """Average pooling without a stride, with and without further arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = self.convolution(x)
        return F.avg_pool2d(y, 3), F.avg_pool2d(y, 2, padding=1), F.avg_pool1d(y[:, :, 0], 2)


def test_average_pooling_without_a_stride_is_delegated() -> None:
    torch.manual_seed(0)
    verdict, detail = lowered(
        Pooled().eval(), [(torch.randn(1, 4, 9, 9),) for _ in range(8)], create("neutron_imxrt700")
    )
    assert verdict == "right", detail
    assert "stays on the CPU" not in detail


def in_turn(x: torch.Tensor) -> torch.Tensor:
    _, second, third = torch.split(x, [1, 1, 2], 1)
    return torch.cat([third, second, second], 1)


@pytest.mark.parametrize(
    "function",
    [
        in_turn,
        lambda x: x.split(3, 1)[1],
        lambda x: torch.cat(x.chunk(2, 1)[::-1], 1),
        lambda x: x.tensor_split(3, dim=1)[2],
    ],
    ids=["sizes", "one part", "chunks", "tensor_split"],
)
def test_parts_of_a_split_are_delegated(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """NXP's pass takes the parts that are read for all parts, in order: IndexError, or another part."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(4, 4, 1), nn.ReLU(), Called(function)).eval()
    verdict, detail = lowered(network, [(torch.randn(1, 4, 8, 8),) for _ in range(8)], create("neutron_imxrt700"))
    assert verdict == "right", detail
    delegated, total = re.findall(r"(\d+) of (\d+) operators delegated", detail)[0]
    assert delegated == total


class Sums(nn.Module):
    """What is added to linear layers: numbers, and constants with a factor that others read, too."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.last = nn.Linear(8, 6), nn.Linear(6, 6, bias=False)
        self.added = nn.Buffer(torch.linspace(-1, 1, 6))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = torch.relu(self.layer(x) + 1)
        z = torch.add(self.last(y), self.added, alpha=3)
        return z, torch.relu(y) * self.added, 0.5 + self.last(y + 0.25), torch.add(self.last(z), 2, alpha=0.5)


class Scaled(nn.Module):
    """Pixels, scaled by a fraction: uint8 [1 x 3 x 8 x 8]."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.layer(torch.cat([x[:, :2] * (1 / 255), x[:, 2:] / 255.0], 1) - 0.5)
        return result


def test_integers_are_multiplied_by_fractions() -> None:
    """NXP's pass made an integer of the fraction."""
    samples = [(torch.randint(0, 256, (1, 3, 8, 8), dtype=torch.uint8),) for _ in range(8)]
    verdict, detail = lowered(Scaled().eval(), samples, create("neutron_imxrt700"))
    assert verdict == "right", detail


def test_what_is_added_to_a_linear_layer_is_its_bias() -> None:
    """NXP's pass failed on numbers and on buffers, and multiplied in place by the factor."""
    torch.manual_seed(0)
    network, samples = Sums().eval(), [(torch.randn(1, 8),) for _ in range(24)]
    kept = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    verdict, detail = lowered(network, samples, create("neutron_imxrt700"))
    assert verdict == "right", detail
    delegated, count = detail.partition(" operators")[0].split(" of ")
    assert delegated == count
    assert all(torch.equal(tensor, kept[name]) for name, tensor in network.state_dict().items())
