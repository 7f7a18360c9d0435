"""Logarithms of a softmax, e.g. at the end of a classifier that was trained by its negative log likelihood."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn
from torch.nn import functional

from benchmarks.in_turns import create
from benchmarks.networks import lowered
from lowerdeck.evaluation.quantization_error import sqnr_db
from tests.networks import quantized_network

if TYPE_CHECKING:
    from torch import Tensor

SHAPE = [1, 8, 8, 8]


class Pixels(nn.Module):
    """Classes of pixels: float32 [1 x 8 x 8 x 8] -> [1 x 6 x 8 x 8]."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Conv2d(8, 6, 1)

    def forward(self, x: Tensor) -> Tensor:
        return functional.log_softmax(20 * self.layer(x), dim=1)


def samples() -> list[tuple[Tensor, ...]]:
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(SHAPE, generator=generator),) for _ in range(8)]


@pytest.mark.parametrize("scheme", ["int8", "int16x8"])
def test_unlikely_classes_have_their_scores(scheme: str) -> None:
    """The logarithm of a softmax of 8 bits had -1.5 dB."""
    network, backend = Pixels().eval(), create("ethos_u55_128")
    module = quantized_network(network, backend, samples(), scheme).module(check_guards=False)
    wanted = torch.stack([network(*sample) for sample in samples()])
    found = torch.stack([module(*sample) for sample in samples()])
    assert sqnr_db(float(wanted.square().sum()), float((wanted - found).square().sum())) > 35


@pytest.mark.parametrize("target", ["ethos_u55_128", "ethos_u85_256"])
def test_all_of_it_is_delegated(target: str) -> None:
    verdict, detail = lowered(Pixels().eval(), samples(), create(target))
    assert verdict == "right", detail
    delegated, count = detail.partition(" operators")[0].split(" of ")
    assert delegated == count, detail
