"""Indices that Arm's passes have changed are those that kernels of the CPU take."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from benchmarks.in_turns import create
from benchmarks.networks import lowered
from tests.marks import quick_first
from tests.networks import Called


@pytest.mark.parametrize(
    "function",
    quick_first(
        [
            lambda x: torch.gather(x, 3, torch.arange(8).flip(0).expand(1, 4, 8, 8)),
            lambda x: torch.scatter(x, 3, torch.arange(4).expand(1, 4, 8, 4) * 2, x[..., :4]),
            lambda x: torch.scatter(x, 3, torch.arange(4).expand(1, 4, 8, 4) * 2, 0.5),
            lambda x: torch.scatter_add(x, 3, torch.arange(4).expand(1, 4, 8, 4) * 2, x[..., :4]),
        ],
        quick=2,
    ),
)
def test_constant_indices_have_64_bits(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """As in DeBERTa's relative positions."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), Called(function), nn.Conv2d(4, 4, 3)).eval()
    verdict, detail = lowered(network, [(torch.randn(1, 3, 8, 8),) for _ in range(8)], create("ethos_u85_256"))
    assert verdict == "right", detail


def test_scores_that_are_copied_into_a_mask_have_indices_of_64_bits() -> None:
    """Calibrate ended in a RuntimeError: "Expected a long tensor for index, but got Int"."""
    torch.manual_seed(0)
    copied = Called(lambda x: torch.full((1, 5, 16), -1e9).index_copy(1, torch.tensor([0, 2]), x))
    network = nn.Sequential(nn.Linear(16, 16), copied).eval()
    verdict, detail = lowered(network, [(torch.randn(1, 2, 16),) for _ in range(8)], create("ethos_u55_128"))
    assert verdict == "right", detail


class Counts(nn.Module):
    """Something that is computed of tokens, int64 [1 x 8] -> float32 [1 x 4], by a tensor of 64 bits."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function, self.layer = function, nn.Linear(8, 4)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        computed: torch.Tensor = self.layer(self.function(tokens).float())
        return computed


def zeros() -> torch.Tensor:
    """int64 [1 x 8]"""
    return torch.zeros(1, 8, dtype=torch.int64)


@pytest.mark.parametrize(
    "function",
    quick_first(
        [
            lambda tokens: zeros().scatter_add(1, tokens, torch.ones_like(tokens)),
            lambda tokens: zeros().scatter(1, tokens, tokens * 2),
            lambda tokens: zeros().index_add(1, torch.arange(8).flip(0), tokens),
            lambda tokens: zeros().index_put((torch.zeros_like(tokens[0]), tokens[0]), tokens[0] * 0 + 3),
            lambda tokens: torch.arange(8)[None].index_copy(1, torch.tensor([3, 1]), tokens[:, :2]),
            lambda tokens: tokens.scatter_add(1, torch.tensor([[1, 2]]), torch.tensor([[5, 7]])),
        ],
        quick=2,
    ),
)
def test_values_have_as_many_bits_as_what_they_are_written_into(
    function: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    """As in a histogram of tokens."""
    torch.manual_seed(0)
    drawn = [(torch.randint(0, 8, (1, 8)),) for _ in range(8)]
    verdict, detail = lowered(Counts(function).eval(), drawn, create("ethos_u55_128"))
    assert verdict == "right", detail


class Counting(nn.Module):
    """Returns how often it was called: float32 [1 x 3 x 8 x 8] -> [1 x 4 x 6 x 6], int64 [1]."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 4, 3)
        self.calls = nn.Buffer(torch.zeros(1, dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.calls.add_(1)
        return self.convolution(x), self.calls * 2


@pytest.mark.parametrize("network", [nn.Sequential(nn.Conv2d(3, 4, 3), Called(lambda x: (4 * x).long())), Counting()])
def test_outputs_have_64_bits(network: nn.Module) -> None:
    torch.manual_seed(0)
    verdict, detail = lowered(network.eval(), [(torch.randn(1, 3, 8, 8),) for _ in range(8)], create("ethos_u55_128"))
    assert verdict == "right", detail


@pytest.mark.parametrize(("target", "delegated"), [("ethos_u85_256", 6), ("ethos_u55_128", 5)])
def test_an_ethos_u85_gathers_itself(target: str, delegated: int) -> None:
    """Along the second of three dimensions, the only one that it takes."""
    torch.manual_seed(0)
    index = torch.randint(0, 4, (1, 6, 64))
    gather = Called(lambda x: torch.gather(x.flatten(2), 1, index).view(1, 6, 8, 8))
    network = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), gather, nn.Conv2d(6, 4, 3)).eval()
    verdict, detail = lowered(network, [(torch.randn(1, 3, 8, 8),) for _ in range(8)], create(target))
    assert verdict == "right", detail
    assert detail.startswith(f"{delegated} of 6 operators delegated")
