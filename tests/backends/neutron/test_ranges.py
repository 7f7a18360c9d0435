"""Quantized programs stay near the float ones: no annotation of the quantizer clips what the model computes."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import nn

from benchmarks.in_turns import create
from benchmarks.networks import lowered
from lowerdeck import backends
from lowerdeck.contracts.quantization import QuantizationScheme
from lowerdeck.evaluation.quantization_error import sqnr_db
from lowerdeck.steps.calibrate import calibrate
from lowerdeck.steps.quantize import quantize
from tests.networks import Called
from tests.runtime.lowering import TARGETS

Tensor = torch.Tensor
CASES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "a product": lambda a, b: a * b,
    "a product with a number": lambda a, b: 3.7 * a,
    "a gate": lambda a, b: a * torch.sigmoid(b),
    "a sigmoid in a concatenation": lambda a, b: torch.cat([torch.sigmoid(a), b], 1),
    "a softmax in a maximum": lambda a, b: torch.maximum(torch.softmax(a, -1), b),
    "a pooled tanh in a concatenation": lambda a, b: torch.cat(
        [nn.functional.max_pool2d(torch.tanh(a), 3, 1, 1), b], 1
    ),
    "a negated sigmoid": lambda a, b: -torch.sigmoid(a),
    "a sum of sigmoids": lambda a, b: torch.sigmoid(a).sum(1, keepdim=True),
    "a sigmoid padded with another number": lambda a, b: nn.functional.pad(torch.sigmoid(a), (1, 1, 1, 1), value=-3.0),
    "sums by a pooling of a sigmoid": lambda a, b: nn.functional.avg_pool2d(torch.sigmoid(a), 2, divisor_override=1),
    "an exponential function": lambda a, b: torch.exp(0.7 * a),
    "shares of a sum": lambda a, b: (lambda c: c.flatten(1) / (c.sum((1, 2, 3))[:, None] + 1))(a.relu()),
}


QUICK = (
    "a product", "a sigmoid in a concatenation", "sums by a pooling of a sigmoid", "an exponential function",
    "shares of a sum",
)  # fmt: skip
"""One case of each correction; the others are the same in other contexts."""


class Around(nn.Module):
    """Two convolutions and what combines them."""

    def __init__(self, combine: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(4, 4, 3, padding=1) for _ in range(2))
        self.combine = combine

    def forward(self, x: Tensor) -> Tensor:
        return self.combine(self.first(x), self.second(x))


def quantized_sqnr(model: nn.Module, samples: list[tuple[Tensor]]) -> float:
    """Of the quantized program on the samples that chose its ranges, in dB."""
    backend = backends.create("neutron", **TARGETS["neutron"])
    scheme = QuantizationScheme(name="int8")

    def exported() -> torch.export.ExportedProgram:
        return torch.export.export(model, samples[0])

    state = calibrate(exported(), backend.quantizer(scheme), samples, len(samples))
    quantized, _ = quantize(exported(), backend.quantizer(scheme), state)
    execute, signal, noise = quantized.module(check_guards=False), 0.0, 0.0
    with torch.no_grad():
        for sample in samples:
            expected, actual = model(*sample).double(), execute(*sample).double()
            signal += float(expected.square().sum())
            noise += float((actual - expected).square().sum())
    return sqnr_db(signal, noise)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in CASES]
)
def test_the_quantized_program_is_near_the_float_one(name: str) -> None:
    torch.manual_seed(0)
    model, samples = Around(CASES[name]).eval(), [(2 * torch.randn(1, 4, 8, 8),) for _ in range(4)]
    found = quantized_sqnr(model, samples)
    assert math.isfinite(found)
    assert found > 25  # clipped, they have 0 to 20 dB


@pytest.mark.parametrize("size", [6, 18])
def test_what_is_added_up_is_not_rounded_to_zero(size: int) -> None:
    """Its range was that of the sum, of which each of thousands of values is less than half a step: the sum was 0."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), Called(lambda x: x.sum((2, 3))), nn.Linear(16, 4)).eval()
    samples = [(torch.randn(1, 3, size, size),) for _ in range(8)]
    assert quantized_sqnr(model, samples) > 33
    verdict, detail = lowered(model, samples, create("neutron_imxrt700"))
    assert verdict == "right", detail
    assert detail.startswith({6: "5 of 5", 18: "4 of 5"}[size])  # a sum of few is delegated


def test_what_is_joined_before_its_parts_are_annotated_shares_a_range() -> None:
    """NXP's quantizer comes to the second concatenation, of zeros and images, before the images."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv3d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv3d(8, 8, 3, padding=1)).eval()
    verdict, detail = lowered(network, [(torch.randn(1, 3, 4, 8, 8),) for _ in range(8)], create("neutron_imxrt700"))
    assert verdict == "right", detail
    delegated, count = detail.partition(" operators")[0].split(" of ")
    assert delegated == count
