"""int16x8: sums that saturate, results of a partition that another one reads, and tables without a value."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.in_turns import create
from benchmarks.networks import lowered
from lowerdeck.compat.arm import WIDEN_FOR_SUMS
from lowerdeck.contracts.quantization import QuantizationScheme
from tests.compat.replacements import without


class Sums(nn.Module):
    """A sum of a sum, both with the smallest scale that Arm's quantizer chooses: float32 [1 x 4 x 8]."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.layer(x)
        return x + torch.relu(x)


class SumsOfConvolutions(nn.Module):
    """A sum of convolutions, and of a part of the image: float32 [1 x 3 x 8 x 8]."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(3, 6, 3, padding=1) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.first(x) + self.second(x) + x[:, :1]
        return made


class Attention(nn.Module):
    """Its products of matrices stay on the CPU of an Ethos-U55: float32 [1 x 6 x 8]."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.Linear(8, 24)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (part.unflatten(-1, (1, 8)).transpose(1, 2) for part in self.parts(x).chunk(3, -1))
        made: Tensor = (query @ key.transpose(-2, -1)).softmax(-1) @ value
        return made


class Normalized(nn.Module):
    """Divided by its length, whose table leaps from -8 to 8 at zero: float32 [1 x 2048 x 8]."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(self.layer(x), dim=-1)


def detail_of(network: nn.Module, shape: tuple[int, ...]) -> str:
    """How a network was lowered for an Ethos-U55."""
    generator = torch.Generator().manual_seed(1)
    samples = [(1.5 * torch.randn(shape, generator=generator),) for _ in range(8)]
    scheme = QuantizationScheme(name="int16x8")
    verdict, detail = lowered(network.eval(), samples, create("ethos_u55_128"), scheme)
    assert verdict == "right", detail
    return detail


def test_a_sum_saturates_in_front_of_the_next() -> None:
    torch.manual_seed(0)
    detail = detail_of(Sums(), (1, 4, 8))
    assert detail.startswith("4 of 4 operators delegated")
    assert "computes something else" not in detail


def test_a_convolution_saturates_in_front_of_a_sum() -> None:
    torch.manual_seed(3)
    detail = detail_of(SumsOfConvolutions(), (1, 3, 8, 8))
    assert detail.startswith("5 of 5 operators delegated")
    assert "computes something else" not in detail


@pytest.mark.slow
def test_arm_leads_a_convolution_past_its_range() -> None:
    """If this fails, the replacement is superfluous."""
    torch.manual_seed(3)
    with without(WIDEN_FOR_SUMS):
        detail = detail_of(SumsOfConvolutions(), (1, 3, 8, 8))
    assert "computes something else" in detail


def test_a_partition_quantizes_what_another_one_reads() -> None:
    """The program expected floats from it, and could not be executed."""
    torch.manual_seed(0)
    detail = detail_of(Attention(), (1, 6, 8))
    assert "cannot be executed" not in detail


@pytest.mark.slow
def test_a_table_without_a_value_is_found() -> None:
    """The partition was not checked, because TOSA leaves open what it computes, and so was the program."""
    torch.manual_seed(0)
    detail = detail_of(Normalized(), (1, 2048, 8))
    assert "stays on the CPU: aten_reciprocal_default" in detail
    assert "not checked" not in detail
