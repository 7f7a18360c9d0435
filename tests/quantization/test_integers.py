"""What a model computes of integers and returns as integers is the same after quantization."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

from benchmarks.in_turns import create
from benchmarks.networks import lowered
from tests.marks import quick_first
from tests.networks import quantized_network

_Function = Callable[[torch.Tensor], torch.Tensor]


def _is_half(x: torch.Tensor) -> torch.Tensor:
    """8 bits of a range up to 0.75 or 1 have no number that is as near to a half."""
    return (x > 0.4999) & (x < 0.5001)


FUNCTIONS: dict[str, _Function] = {
    "halves": lambda tokens: (tokens.float() * 0.5).floor().long(),
    "pages": lambda tokens: (tokens.float() / 41).floor().long(),
    "sheets": lambda tokens: tokens.float().div_(41).floor().long(),
    "rates": lambda tokens: (tokens.float() / (tokens.float().amax(1, keepdim=True) / 49)).floor().long(),
    "roots": lambda tokens: torch.sqrt(tokens.float() + 1).to(torch.int32),
    "buckets": lambda tokens: (torch.log(tokens.float().clamp(min=1) / 4) / torch.log(torch.tensor(40.0)) * 64).long(),
    "quotients": lambda tokens: torch.div(tokens, 7, rounding_mode="trunc"),
    "differences": lambda tokens: (tokens[:, :, None] - tokens[:, None, :]).abs().float().div(3).round().long(),
    "remainders": lambda tokens: tokens.float().remainder(13).long(),
    "sums": lambda tokens: tokens.float().cumsum(1).to(torch.int64),
    "halves of flags": lambda tokens: _is_half((tokens[:, :4] > 200).float().mean(1, keepdim=True)).long(),
    "rows": lambda tokens: tokens.argmax(1),
}
TARGETS = ["ethos_u55_128", "cortex_m55", "neutron_imxrt700", "xnnpack_cpu"]


class Indexed(nn.Module):
    def __init__(self, function: _Function) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.function, self.table, self.last = function, nn.Embedding(3000, 8), nn.Linear(8, 4)

    def forward(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        indices = self.function(tokens)
        return self.last(self.table(indices)), indices


@pytest.mark.parametrize("target", quick_first(TARGETS))
@pytest.mark.parametrize("name", FUNCTIONS)
def test_integers_are_not_rounded_to_8_bits(name: str, target: str) -> None:
    network, backend = Indexed(FUNCTIONS[name]).eval(), create(target)
    torch.manual_seed(1)
    samples = [(torch.randint(1, 13, [1, 5]) * 41,) for _ in range(8)]
    quantized = quantized_network(network, backend, samples).module(check_guards=False)
    for inputs in samples:
        values, indices = network(*inputs)
        given, given_indices = quantized(*inputs)
        assert given_indices.tolist() == indices.tolist()
        assert (given - values).abs().max() < 0.05 * values.abs().max()


class Layered(nn.Module):
    """A layer, and a function of its result beside it."""

    def __init__(self, function: _Function) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.function, self.layer = function, nn.Conv2d(3, 4, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.layer(x)
        return y * 2, self.function(y)


def left_to_the_cpu(function: _Function, target: str) -> tuple[int, str]:
    """How many operators, and what was said."""
    samples = [(torch.randn(1, 3, 4, 4),) for _ in range(8)]
    verdict, detail = lowered(Layered(function).eval(), samples, create(target))
    assert verdict == "right", detail
    delegated, count = detail.partition(" operators")[0].split(" of ")
    return int(count) - int(delegated), detail


@pytest.mark.parametrize(("target", "count"), [("ethos_u85_256", 0), ("ethos_u55_128", 1)])
def test_numbers_that_a_layers_result_is_compared_with_are_quantized(target: str, count: int) -> None:
    """As is the result; otherwise the NPU could not compare them. An Ethos-U55 has no booleans."""
    assert left_to_the_cpu(lambda y: y > 0.25, target)[0] == count


@pytest.mark.parametrize("function", [lambda y: (y > 0.25).any(1), lambda y: ~(y > 0.25), lambda y: (y > 0) & (y < 1)])
def test_an_npu_computes_logic(function: _Function) -> None:
    """Arm's passes write some of it with floats, of zeros and ones."""
    assert "was not compiled" not in left_to_the_cpu(function, "ethos_u85_256")[1]


def test_a_division_that_says_that_it_does_not_round_is_delegated() -> None:
    assert left_to_the_cpu(lambda y: torch.div(y, 4, rounding_mode=None), "ethos_u55_128")[0] == 0


def _clamped(y: torch.Tensor) -> torch.Tensor:
    """At limits on whose scale most grids have no number."""
    return torch.cat([y.clamp(-limit, limit).long() for limit in range(1, 9)])


def _coordinates(y: torch.Tensor) -> torch.Tensor:
    """Numbers of cells, as a table of two dimensions is read."""
    rows, columns = y.chunk(2, 1)
    return (rows.floor().clamp(-8, 7) * 16 + columns.round() + 200).to(torch.uint8)


ROUNDED: dict[str, _Function] = {
    "rounded": lambda y: y.round().long(),
    "rounded down": lambda y: y.floor().to(torch.int16),
    "rounded up": lambda y: y.ceil_().int(),
    "signs": lambda y: y.sign().long(),
    "in place": lambda y: y.clone().sign_().long(),
    "divided": lambda y: (y // 1).long(),
    "rounded by a division": lambda y: torch.div(y, 1, rounding_mode="floor").long(),
    "clamped": lambda y: y.round().clamp(-3, 3).reshape(1, -1)[:, 4:20].long(),
    "clamped alone": _clamped,
    "coordinates": _coordinates,
    "concatenated": lambda y: torch.cat([y.floor(), y.round(), y.flip(1).ceil()], 1).long(),
    "chosen": lambda y: torch.where(y > 0, y.floor(), y.ceil()).long(),
    "digits": lambda y: ((y.clamp(-2, 2).round() + 2) * 5 ** torch.arange(4).view(1, 4, 1, 1)).sum(1).round().long(),
    "divided again": lambda y: (y.round() * 41 / 41).long(),
}


class Rounding(nn.Module):
    """A layer of results up to 10 or so, and a function of these."""

    def __init__(self, function: _Function) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.function, self.layer = function, nn.Conv2d(3, 4, 1)
        self.layer.weight.data *= 5

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.layer(x)
        return y, self.function(y * 1)


def _integers_and_expected(name: str, target: str, scheme: str = "int8") -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    network, backend = Rounding(ROUNDED[name]).eval(), create(target)
    torch.manual_seed(1)
    samples = [(torch.randn(1, 3, 8, 8),) for _ in range(8)]
    quantized = quantized_network(network, backend, samples, scheme).module(check_guards=False)
    for inputs in samples:
        values, integers = quantized(*inputs)
        yield integers, network.function(values.clone())


@pytest.mark.parametrize("target", quick_first(TARGETS))
@pytest.mark.parametrize("name", ROUNDED)
def test_numbers_of_layers_that_become_integers_are_not_rounded_to_8_bits_behind_their_rounding(
    name: str, target: str
) -> None:
    """But for the rounding of the layer's own results, which `y * 1` may see a step beside."""
    for integers, expected in _integers_and_expected(name, target):
        assert (integers != expected).float().mean() < 0.03
        assert integers.dtype == expected.dtype


@pytest.mark.parametrize("name", ["rounded", "signs", "coordinates"])
def test_rounded_numbers_are_the_same_integers_in_16_bits(name: str) -> None:
    for integers, expected in _integers_and_expected(name, "ethos_u85_256", "int16x8"):
        assert (integers != expected).float().mean() < 0.01


@pytest.mark.parametrize("target", ["ethos_u55_128", "cortex_m55", "neutron_imxrt700"])
def test_rounded_numbers_are_lowered_also_where_others_use_them(target: str) -> None:
    def rounded(y: torch.Tensor) -> torch.Tensor:
        whole = (y * 3).round()
        return whole.long() + torch.relu(whole * 0.5).long()

    left_to_the_cpu(rounded, target)


WHOLE_INPUTS: dict[str, _Function] = {
    "length": lambda mask: mask.sum(1).long(),
    "last": lambda mask: (mask.sum(1, keepdim=True) - 1).long(),
    "positions": lambda mask: (mask.cumsum(1) * mask).to(torch.int32),
    "halves": lambda mask: (mask.sum(1) / 2).floor().long(),
    "categories": lambda mask: (mask * torch.arange(8))[:, 1:4].long(),
    "scaled before": lambda mask: (mask / 255 * 255).long(),
}


class Counting(nn.Module):
    """A layer, and rows of a table beside it, as a function of float32 [1 x 8] chooses them."""

    def __init__(self, function: _Function) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.function, self.layer, self.table = function, nn.Linear(8, 4), nn.Embedding(9, 4)

    def forward(self, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        indices = self.function(mask)
        return self.layer(mask) + self.table(indices).sum(1), indices


@pytest.mark.parametrize("target", quick_first(TARGETS))
@pytest.mark.parametrize("name", quick_first(list(WHOLE_INPUTS), 2))
def test_integers_of_inputs_that_are_floats_are_not_rounded_to_8_bits(name: str, target: str) -> None:
    """What 8 bits make of 3 was 2.99, and 2 as an integer: other rows of the table, and -4 to 2 dB."""
    network, backend = Counting(WHOLE_INPUTS[name]).eval(), create(target)
    samples = [((torch.arange(8) < length).float()[None],) for length in range(1, 9)]
    quantized = quantized_network(network, backend, samples).module(check_guards=False)
    for inputs in samples:
        assert quantized(*inputs)[1].tolist() == network(*inputs)[1].tolist()
    verdict, detail = lowered(network, samples, backend)
    assert verdict == "right", detail


def test_an_npu_computes_what_becomes_integers_of_a_layer() -> None:
    assert left_to_the_cpu(lambda y: (y * 255 + 3).int(), "ethos_u85_256")[0] == 1
    assert left_to_the_cpu(lambda y: y.sum(1).int(), "ethos_u85_256")[0] == 1


@pytest.mark.parametrize("function", [lambda y: y.round() * 0.5, lambda y: y.floor() == 2])
def test_rounded_numbers_that_stay_floats_are_delegated(function: _Function) -> None:
    assert left_to_the_cpu(function, "ethos_u85_256")[0] == 0
