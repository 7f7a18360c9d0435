"""Divisions by lengths and sums that may be zero survive quantization."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.in_turns import create
from benchmarks.networks import lowered
from lowerdeck.contracts.quantization import QuantizationScheme
from tests.marks import quick_first
from tests.networks import quantized_network

_Function = Callable[[torch.Tensor], torch.Tensor]
SHAPE = [1, 3, 10, 10]


def _above_a_threshold(y: torch.Tensor) -> torch.Tensor:
    """A modReLU: the length is compared and divided by. Rounded to zero, it made 0 / 0 on Neutron and XNNPACK."""
    length = (y * y + y.flip(1) ** 2 + 1e-4).sqrt()
    return (length - 0.1).relu() / length


def _beside_its_sum(y: torch.Tensor) -> torch.Tensor:
    total = y.sum(1, keepdim=True) + 1e-5
    return y / total + total


def _by_two_lengths(y: torch.Tensor) -> torch.Tensor:
    """A cosine by hand. The product of two lengths was rounded to zero, which made 0 / 0 on Neutron and XNNPACK."""
    first, second = y[:, :4], y[:, 4:]
    lengths = first.norm(dim=1, keepdim=True).clamp_min(1e-8) * second.norm(dim=1, keepdim=True).clamp_min(1e-8)
    cosines: torch.Tensor = (first * second).sum(1, keepdim=True) / lengths
    return cosines * y


DIVISIONS: dict[str, _Function] = {
    "normalize": lambda y: F.normalize(y, dim=1),
    "norm": lambda y: y / (y.norm(dim=1, keepdim=True) + 1e-5),
    "sum": lambda y: y / (y.sum(1, keepdim=True) + 1e-5),
    "root": lambda y: y / (y.pow(2).mean(1, keepdim=True) + 1e-5).sqrt(),
    "cosine": lambda y: F.cosine_similarity(y, y.flip(1), dim=1)[:, None] * y,
    "reciprocal": lambda y: y * (1 / (y.sum(1, keepdim=True) + 1e-5)),
    "clamp": lambda y: y / y.amax(1, keepdim=True).clamp(min=1e-5),
    "maximum": lambda y: y / torch.maximum(y.amax(1, keepdim=True), torch.tensor(1e-5)),
    "other bounds": lambda y: y.clamp(max=4) / (y.sum(1, keepdim=True).clamp(max=9).add(1e-5).clamp(None, 8)),
    "two readers": _above_a_threshold,
    "also added": _beside_its_sum,
    "without a number": lambda y: y / torch.sigmoid(6 * y - 8),
    "product": _by_two_lengths,
    "cosine of parts": lambda y: F.cosine_similarity(y[:, :4], y[:, 4:], dim=1)[:, None] * y,
    "square": lambda y: (y * y) / (y.sum(1, keepdim=True) + 1e-5),
}
LENGTHS: dict[str, _Function] = {
    "reciprocal root": lambda y: y * torch.rsqrt(y.pow(2).sum(1, keepdim=True) + 1e-10),
    "root": lambda y: y / (y.pow(2).sum(1, keepdim=True).sqrt() + 1e-10),
    "constant powers": lambda y: (
        y / (y.abs().pow(torch.tensor(2.0)).sum(1, keepdim=True) + 1e-10) ** torch.full((8, 1, 1), 0.5)
    ),
    "root of more": lambda y: y / (y.pow(2).sum(1, keepdim=True) + 1e-10).sqrt(),
}
TARGETS = ["ethos_u55_128", "cortex_m55", "neutron_imxrt700", "xnnpack_cpu"]


class Divided(nn.Module):
    """All channels of some pixels are zero."""

    def __init__(self, function: _Function) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.function = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 3), function
        self.first.bias.data -= 0.5  # type: ignore[union-attr]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.last(self.function(self.first(x).relu()))
        return result


@pytest.fixture
def samples() -> list[tuple[torch.Tensor, ...]]:
    torch.manual_seed(1)
    return [(torch.randn(SHAPE),) for _ in range(8)]


def _sqnr_db(network: nn.Module, target: str, samples: list[tuple[torch.Tensor, ...]]) -> float:
    """Of the quantized network relative to the float one."""
    quantized = quantized_network(network, create(target), samples).module(check_guards=False)
    expected = torch.cat([network(*inputs) for inputs in samples])
    noise = torch.cat([torch.as_tensor(quantized(*inputs)) for inputs in samples]) - expected
    return float(10 * torch.log10(expected.square().sum() / noise.square().sum()))


@pytest.mark.parametrize("target", quick_first(TARGETS))
@pytest.mark.parametrize("name", DIVISIONS)
def test_the_quantized_model_divides_as_the_float_one_does(
    name: str, target: str, samples: list[tuple[torch.Tensor, ...]]
) -> None:
    assert _sqnr_db(Divided(DIVISIONS[name]).eval(), target, samples) > 15


@pytest.mark.parametrize("target", quick_first(TARGETS))
@pytest.mark.parametrize("name", LENGTHS)
def test_vectors_that_are_nearly_zero_keep_their_length(
    name: str, target: str, samples: list[tuple[torch.Tensor, ...]]
) -> None:
    """A square of less than half a step was zero, and the quotient 1e5 times the vector."""
    network = Divided(LENGTHS[name]).eval()
    network.first.bias.data.zero_()  # type: ignore[union-attr]
    scales = torch.where(torch.arange(10) < 5, 1.0, 0.05)
    assert _sqnr_db(network, target, [(x * scales,) for (x,) in samples]) > 10


class Levels(nn.Module):
    """What a power is divided by to become 1, the last operator of a network: [1 x 3 x 10 x 10] -> [1 x 8]."""

    def __init__(self, smallest: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.smallest = nn.Conv2d(3, 8, 3, bias=False), smallest

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.rsqrt(self.first(x).square().mean((2, 3)) + self.smallest)


@pytest.mark.parametrize(("target", "smallest"), [("xnnpack_cpu", 1e-5), *((target, 1e-2) for target in TARGETS)])
def test_reciprocal_roots_may_be_outputs(smallest: float, target: str, samples: list[tuple[torch.Tensor, ...]]) -> None:
    """XNNPACK, which quantizes nothing behind one, made infinities of them."""
    drawn: list[tuple[torch.Tensor, ...]] = [(x * 10 ** (-index / 5),) for index, (x,) in enumerate(samples)]
    assert _sqnr_db(Levels(smallest).eval(), target, drawn) > 15


@pytest.mark.parametrize("target", quick_first(TARGETS))
def test_lengths_of_vectors_that_are_nearly_zero_are_lowered(
    target: str, samples: list[tuple[torch.Tensor, ...]]
) -> None:
    scales = torch.where(torch.arange(10) < 5, 1.0, 0.05)
    network = Divided(LENGTHS["reciprocal root"]).eval()
    verdict, detail = lowered(network, [(x * scales,) for (x,) in samples], create(target))
    assert verdict == "right", detail


@pytest.mark.parametrize("target", ["ethos_u55_128"])
def test_variances_that_no_sample_had_near_zero_are_delegated(
    target: str, samples: list[tuple[torch.Tensor, ...]]
) -> None:
    network = Divided(lambda y: y * torch.rsqrt((y + 1).pow(2).mean(1, keepdim=True) + 1e-6)).eval()
    verdict, detail = lowered(network, samples, create(target))
    assert verdict == "right", detail
    delegated, count = detail.partition(" operators")[0].split(" of ")
    assert delegated == count


@pytest.mark.parametrize("by", [6.0, torch.linspace(0.2, 0.3, 8).view(8, 1, 1)])
def test_a_division_by_constants_is_delegated(
    by: float | torch.Tensor, samples: list[tuple[torch.Tensor, ...]]
) -> None:
    """Ethos-U multiplies by the reciprocal; results whose smallest value is zero were left to the CPU in float."""
    verdict, detail = lowered(Divided(lambda y: y / by).eval(), samples, create("ethos_u55_128"))
    assert verdict == "right", detail
    delegated, count = detail.partition(" operators")[0].split(" of ")
    assert delegated == count


class Pixels(Divided):
    """uint8 [1 x 3 x 10 x 10]."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.float() / 255.0)


def test_pixels_are_divided_by_the_npu() -> None:
    drawn = [(torch.randint(0, 256, SHAPE, dtype=torch.uint8),) for _ in range(8)]
    verdict, detail = lowered(Pixels(lambda y: y).eval(), drawn, create("ethos_u55_128"))
    assert verdict == "right", detail
    delegated, count = detail.partition(" operators")[0].split(" of ")
    assert int(delegated) == int(count) - 1  # but for the conversion to float


class Doubled(nn.Module):
    """A constant that is computed in 2 ** 40 ways."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.constant = nn.Linear(8, 8), nn.Parameter(torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        constant: torch.Tensor = self.constant
        for _ in range(40):
            constant = (constant + constant.relu()) / 2
        y = self.first(x)
        result: torch.Tensor = y * (torch.rsqrt(y.pow(2) + 1e-5) * constant)
        return result


def test_a_constant_is_recognized_at_once() -> None:
    backend = create("xnnpack_cpu")
    verdict, detail = lowered(Doubled().eval(), [(torch.randn(1, 8),) for _ in range(8)], backend)
    assert verdict == "right", detail


class Inverted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.last(1 / (self.first(x).abs() + 1e-2))
        return result


def test_without_recorded_ranges_nothing_is_kept_in_float() -> None:
    samples = [(torch.randn(4, 8),) for _ in range(8)]
    scheme = QuantizationScheme(name="int8_dynamic")
    verdict, detail = lowered(Inverted().eval(), samples, create("xnnpack_cpu"), scheme)
    assert verdict == "right", detail


@pytest.mark.parametrize("target", quick_first(TARGETS))
@pytest.mark.parametrize("name", quick_first(list(DIVISIONS)))
def test_the_program_divides_as_the_quantized_model_does(
    name: str, target: str, samples: list[tuple[torch.Tensor, ...]]
) -> None:
    verdict, detail = lowered(Divided(DIVISIONS[name]).eval(), samples, create(target))
    assert verdict == "right", detail
