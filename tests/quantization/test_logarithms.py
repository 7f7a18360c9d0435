"""Logarithms of numbers that come near zero survive quantization."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from benchmarks.in_turns import create
from benchmarks.networks import lowered
from tests.marks import quick_first
from tests.networks import quantized_network

_Function = Callable[[torch.Tensor], torch.Tensor]
_Samples = list[tuple[torch.Tensor, ...]]
SHAPE = [1, 128]
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
    filters = torch.arange(8 * 4).reshape(8, 4) % 7 / 16
    return (_power(y).transpose(1, 2) @ filters).clamp(min=1e-5).log().transpose(1, 2)


LOGARITHMS: dict[str, tuple[_Function, float]] = {
    "power": (lambda y: torch.log(_power(y) + 1e-6), 20),
    "mel": (_mel, 25),
    "level": (lambda y: 10 * torch.log10(y.pow(2).mean(2, keepdim=True) + 1e-8), 20),
    "tanh": (lambda y: torch.log(1 - (y * 8).tanh() ** 2 + 1e-6), 20),
    "small numbers": (lambda y: torch.log1p(_power(y * 9)), 25),
    "root": (lambda y: (_power(y) + 1e-6) ** 0.1, 20),
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


@pytest.mark.parametrize("target", quick_first(TARGETS))
@pytest.mark.parametrize("name", quick_first(["power", "mel"]))
def test_logarithms_of_small_numbers_are_lowered(name: str, target: str, samples: _Samples) -> None:
    verdict, detail = lowered(_network(LOGARITHMS[name][0], samples), samples, create(target))
    assert verdict == "right", detail


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
