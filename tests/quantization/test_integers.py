"""What a model computes of integers and returns as integers is the same after quantization."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from benchmarks.in_turns import create
from benchmarks.networks import lowered
from lowerdeck.contracts.quantization import QuantizationScheme
from lowerdeck.quantization.annotation import scheme_quantizer
from lowerdeck.steps.calibrate import calibrate
from lowerdeck.steps.export import export
from lowerdeck.steps.quantize import quantize

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
TARGETS = ["cortex_m55", "ethos_u55_128", "neutron_imxrt700", "xnnpack_cpu"]


class Indexed(nn.Module):
    def __init__(self, function: _Function) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.function, self.table, self.last = function, nn.Embedding(3000, 8), nn.Linear(8, 4)

    def forward(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        indices = self.function(tokens)
        return self.last(self.table(indices)), indices


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_integers_are_not_rounded_to_8_bits(name: str, target: str) -> None:
    network, backend = Indexed(FUNCTIONS[name]).eval(), create(target)
    observing, converting = (scheme_quantizer(backend, QuantizationScheme(name="int8")) for _ in range(2))
    assert observing is not None
    assert converting is not None
    torch.manual_seed(1)
    samples = [(torch.randint(1, 13, [1, 5]) * 41,) for _ in range(8)]

    def exported() -> torch.export.ExportedProgram:
        return export(network, [[1, 5]], (), backend.memory_format, input_dtypes=["int64"])

    state = calibrate(exported(), observing, samples, len(samples))
    quantized = quantize(exported(), converting, state)[0].module(check_guards=False)
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
