"""Logarithms of numbers that come near zero survive quantization."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.in_turns import create
from benchmarks.networks import lowered
from tests.marks import quick_first
from tests.networks import quantized_network

_Function = Callable[[torch.Tensor], torch.Tensor]
_Samples = list[tuple[torch.Tensor, ...]]
SHAPE = [1, 128]
FILTERS = torch.arange(8 * 4).reshape(8, 4) % 7 / 16
TARGETS = ["xnnpack_cpu", "ethos_u55_128", "neutron_imxrt700", "cortex_m55"]


class Spectrum(nn.Module):
    """Features of the spectra of seven windows, computed by a convolution as a short-time Fourier transform is."""

    def __init__(self, function: _Function) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.function = (
            nn.Conv1d(1, 16, 32, stride=16, bias=False),
            nn.LazyConv1d(8, 1),
            function,
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.last(self.function(self.first(x[:, None])))
        return result


def _power(y: torch.Tensor) -> torch.Tensor:
    return y[:, :8] ** 2 + y[:, 8:] ** 2


def _mel(y: torch.Tensor) -> torch.Tensor:
    return (_power(y).transpose(1, 2) @ FILTERS).clamp(min=1e-5).log().transpose(1, 2)


def _parts(y: torch.Tensor) -> torch.Tensor:
    real, imaginary = y.chunk(2, 1)
    low, high = torch.cumsum(real**2 + imaginary**2, 2).chunk(2, 1)
    return torch.log(torch.cat([low, high], 1).relu()[:, None].squeeze() + 1e-6)[None]


LOGARITHMS: dict[str, tuple[_Function, float]] = {
    "power": (lambda y: torch.log(_power(y) + 1e-6), 20),
    "mel": (_mel, 25),
    "softmax": (lambda y: torch.log(torch.softmax(y * 12, 1) + 1e-8), 25),
    "quotient": (lambda y: torch.log((_power(y) + 1e-6) / (_power(y).sum(1, keepdim=True) + 1e-6)), 10),
    "reciprocal root": (lambda y: -torch.log(torch.rsqrt(_power(y) + 1e-6)), 20),
    "pooled": (lambda y: torch.log(F.avg_pool1d(y**2, 3, 1) + 1e-6), 20),
    "parts": (_parts, 20),
    "norm": (lambda y: torch.log(y.norm(dim=1, keepdim=True) + 1e-6), 20),
    "filter bank": (lambda y: torch.log(F.conv1d(_power(y), FILTERS.T[:, :, None]) + 1e-6), 25),
    "logarithm": (lambda y: torch.log(torch.log1p(_power(y) * 100) + 1e-4), 12),
    "level": (lambda y: 10 * torch.log10(y.pow(2).mean(2, keepdim=True) + 1e-8), 20),
    "tanh": (lambda y: torch.log(1 - (y * 8).tanh() ** 2 + 1e-6), 20),
    "small numbers": (lambda y: torch.log1p(_power(y * 9)), 25),
    "root": (lambda y: (_power(y) + 1e-6) ** 0.1, 20),
    "roots of channels": (lambda y: (_power(y) + 1e-6) ** torch.linspace(0.05, 0.2, 8)[:, None], 20),
    "root of all": (lambda y: (_power(y) + 1e-6) ** torch.full_like(y[:, :8], 0.1), 20),
    "logarithm of a root": (lambda y: torch.log((_power(y) + 1e-6) ** torch.tensor(0.25)), 20),
    "root of a root": (lambda y: (_power(y) + 1e-6).sqrt()[:, None].sqrt().squeeze(1), 20),
    "inverse hyperbolic sine": (lambda y: torch.asinh(_power(y * 30)), 20),
    "soft plus": (lambda y: torch.log(1 + torch.exp(y * 8)), 25),
}
"""Functions of [1 x 16 x 7], with the least SQNR of a network with them, in dB."""


@pytest.fixture
def samples() -> _Samples:
    """Noise that becomes ten times as loud within each of them, and from the last to the first."""
    torch.manual_seed(1)
    loudness = torch.logspace(-1, 0, SHAPE[1])
    return [(torch.randn(SHAPE) * loudness * 10 ** (-index / 7),) for index in range(8)]


def _network(function: _Function, samples: _Samples) -> nn.Module:
    network = Spectrum(function).eval()
    network(*samples[0])
    return network


def _sqnr_db(network: nn.Module, target: str, samples: _Samples) -> float:
    """Of the quantized network relative to what varies in the results of the float one."""
    quantized = quantized_network(network, create(target), samples).module(check_guards=False)
    expected = torch.cat([network(*inputs) for inputs in samples])
    noise = torch.cat([torch.as_tensor(quantized(*inputs)) for inputs in samples]) - expected
    return float(10 * torch.log10((expected - expected.mean()).square().sum() / noise.square().sum()))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", quick_first(LOGARITHMS))
def test_differences_between_small_numbers_are_kept(name: str, target: str, samples: _Samples) -> None:
    function, least = LOGARITHMS[name]
    assert _sqnr_db(_network(function, samples), target, samples) > least


@pytest.mark.parametrize("target", TARGETS)
def test_logits_of_probabilities_near_zero_are_kept(target: str, samples: _Samples) -> None:
    network = _network(lambda y: torch.logit(torch.sigmoid(y * 12), eps=1e-5), samples)
    assert _sqnr_db(network, target, samples) > 25


class PowerMean(nn.Module):
    """Generalized mean pooling of loudness, whose exponent is trained: [1 x 16 x 7] -> [1 x 8 x 1]."""

    def __init__(self) -> None:
        super().__init__()
        self.exponent = nn.Parameter(torch.tensor(3.0))

    def forward(self, y: torch.Tensor) -> torch.Tensor:
        powers = _power(y).clamp(min=1e-6).pow(self.exponent)
        return powers.mean(2, keepdim=True).pow(1 / self.exponent)


@pytest.mark.parametrize("target", TARGETS)
def test_exponents_may_be_parameters(target: str, samples: _Samples) -> None:
    assert _sqnr_db(_network(PowerMean(), samples), target, samples) > 30


@pytest.mark.parametrize("target", quick_first(TARGETS))
@pytest.mark.parametrize("name", quick_first(["power", "mel"]))
def test_logarithms_of_small_numbers_are_lowered(name: str, target: str, samples: _Samples) -> None:
    verdict, detail = lowered(_network(LOGARITHMS[name][0], samples), samples, create(target))
    assert verdict == "right", detail


class OfInput(nn.Module):
    """Features of a power spectrum [1 x 1 x 16 x 8]."""

    def __init__(self, function: _Function) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.function = nn.Conv2d(1, 8, 3), nn.Conv2d(8, 3, 3), function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.last(self.first(self.function(x) / 4 + 1).relu())
        return result


def _spectra() -> _Samples:
    """Power spectra over six decades."""
    torch.manual_seed(1)
    return [(10 ** (torch.randn(1, 1, 16, 8) * 1.2 - 2),) for _ in range(8)]


@pytest.mark.parametrize("target", quick_first(TARGETS))
@pytest.mark.parametrize("name", quick_first(["sum", "clamp", "root", "plain"]))
def test_logarithms_of_inputs_are_computed_in_float(name: str, target: str) -> None:
    functions: dict[str, tuple[_Function, float]] = {
        "sum": (lambda x: torch.log(x + 1e-6), 30),
        "clamp": (lambda x: x.clamp(min=1e-6).log(), 30),
        "root": (lambda x: x**0.1, 18),
        "plain": (torch.log, 30),
    }
    function, least = functions[name]
    assert _sqnr_db(OfInput(function).eval(), target, _spectra()) > least


@pytest.mark.parametrize("target", quick_first(TARGETS))
def test_logarithms_of_inputs_are_lowered(target: str) -> None:
    verdict, detail = lowered(OfInput(lambda x: torch.log(x + 1e-6)).eval(), _spectra(), create(target))
    assert verdict == "right", detail


class Logarithm(nn.Module):
    """Beside a small number."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.log(x + 1e-6)


def test_trained_layers_in_front_of_logarithms_stay_quantized() -> None:
    torch.manual_seed(0)
    pooled = [nn.Conv2d(1, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    network = nn.Sequential(*pooled, nn.Linear(8, 4), nn.ReLU(), Logarithm()).eval()
    graph = quantized_network(network, create("ethos_u55_128"), _spectra()).graph
    products = [node for node in graph.nodes if str(node.target).startswith(("aten.conv2d", "aten.linear"))]
    assert len(products) == 2
    assert all("dequantize" in source.name for node in products for source in node.all_input_nodes[:2])
    quantized = [user.name for node in products for relu in node.users for user in relu.users]
    assert all("quantize" in name for name in quantized)


@pytest.mark.parametrize("name", ["far from zero", "of many", "log_softmax"])
def test_logarithms_of_other_numbers_are_delegated(name: str, samples: _Samples) -> None:
    functions: dict[str, _Function] = {
        "far from zero": lambda y: torch.log(y.abs() + 1.0),
        "of many": lambda y: y - torch.log(y.exp().sum(1, keepdim=True)),
        "log_softmax": lambda y: y.log_softmax(1),
    }
    verdict, detail = lowered(_network(functions[name], samples), samples, create("ethos_u55_128"))
    assert verdict == "right", detail
    delegated, count = detail.partition(" operators")[0].split(" of ")
    assert delegated == count
