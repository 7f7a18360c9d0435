"""A maximum over what a mask leaves keeps its resolution."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from benchmarks.in_turns import create
from benchmarks.networks import lowered
from lowerdeck.contracts.backends import DynamicDimension
from lowerdeck.evaluation.quantization_error import sqnr_db
from lowerdeck.steps.export import export
from tests.marks import quick_first
from tests.networks import quantized_network

SHAPES, DTYPES = [[1, 6, 4], [1, 6]], ["float32", "bool"]
_Function = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
FUNCTIONS: dict[str, _Function] = {
    "amax": lambda y, keep: y.masked_fill(~keep, -torch.inf).amax(1),
    "max": lambda y, keep: torch.where(keep, y, -torch.inf).max(1)[0],
    "max of the other way round": lambda y, keep: torch.where(~keep, -1e9, y).max(1)[0],
    "argmax": lambda y, keep: y.masked_fill(~keep, torch.finfo(y.dtype).min).argmax(1),
    "indices of ties": lambda y, keep: torch.where(keep, y.relu(), -1e9).max(1)[1],
    "argmin of ties": lambda y, keep: y.clamp(max=-5).masked_fill(~keep, torch.inf).argmin(1),
    "argmin of equal numbers": lambda y, keep: (0 * y + 1e6).masked_fill(~keep, torch.inf).argmin(1),
    "counts": lambda y, keep: torch.where(~keep, -torch.inf, (y * 9).long()).max(1)[0],
    "amin": lambda y, keep: y.masked_fill(~keep, torch.inf).amin(1),
}


def _or_seven(largest: torch.Tensor) -> torch.Tensor:
    return torch.where(largest.isinf(), 7.0, largest)


def _running(y: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    largest = torch.full((1, 8), -torch.inf)
    for start in (0, 2, 4):
        part = slice(start, start + 2)
        largest = torch.maximum(largest, y[:, part].masked_fill(~keep[:, part], -torch.inf).amax(1))
    return largest


GUARDED: dict[str, _Function] = {
    "isinf": lambda y, keep: _or_seven(y.masked_fill(~keep, -torch.inf).amax(1)),
    "isfinite": lambda y, keep: (z := torch.where(keep, y, -torch.inf).max(1)[0]).where(z.isfinite(), 7.0),
    "isneginf": lambda y, keep: (z := y.masked_fill(~keep, -torch.inf).amax(1)).masked_fill(z.isneginf(), 7.0),
    "a large number": lambda y, keep: torch.where((z := y.masked_fill(~keep, -1e9).amax(1)) < -1e8, 7.0, z),
    "a factor": lambda y, keep: (z := y.masked_fill(~keep, -1e9).amax(1)) * 0 + (z > -1e8),
    "equal": lambda y, keep: (z := y.masked_fill(~keep, torch.inf).amin(1)).masked_fill(z == torch.inf, 7.0),
    "no number": lambda y, keep: y.masked_fill(~keep, -torch.inf).amax(1).nan_to_num(neginf=7.0),
    "another tensor": lambda y, keep: y.masked_fill(~keep, -torch.inf).amax(1) > y[:, 0] - 9,
    "a tensor": lambda y, keep: torch.where(
        (z := y.masked_fill(~keep, -torch.inf).amax(1)) == torch.tensor(-torch.inf), 7.0, z
    ),
    "a tensor of its shape": lambda y, keep: torch.where(
        (z := torch.where(keep, y, -1e9).amax(1)) == torch.full_like(z, -1e9), 7.0, z
    ),
    "stored numbers": lambda y, keep: y.masked_fill(~keep, -torch.inf).amax(1) >= torch.tensor([-torch.inf, 0.0] * 4),
    "another extremum": lambda y, keep: (
        y.masked_fill(~keep, -torch.inf).amax(1) == (-2 * y).masked_fill(~keep, -torch.inf).amax(1)
    ),
    "what is left of others": lambda y, keep: (
        y.masked_fill(~keep, -torch.inf).amax(1) >= (y + torch.where(keep, 0.0, -torch.inf))[:, 5]
    ),
    "a quotient": lambda y, keep: y.masked_fill(~keep, -torch.inf).amax(1) <= (z := keep.sum(1)) * 9 / z,
    "of groups": lambda y, keep: _or_seven(
        y.view(1, 2, 3, -1).masked_fill(~keep.view(1, 2, 3, -1), -torch.inf).amax(2)
    ),
    "moved": lambda y, keep: _or_seven(torch.where(~keep, -torch.inf, y).amax(1, True).transpose(1, 2).clone()),
    "of all": lambda y, keep: _or_seven(y.masked_fill(~keep, -torch.inf).max()),
    "of several": lambda y, keep: _or_seven(y.masked_fill(~keep, -torch.inf).amax(1).amax(1)),
    "half": lambda y, keep: _or_seven(y.masked_fill(~keep, -1e9).amax(1).half()),
    "of indices": lambda y, keep: y.masked_fill(~keep, -torch.inf).argmax(1) > 2,
    "sigmoid": lambda y, keep: y.masked_fill(~keep, -torch.inf).amax(1).sigmoid(),
    "tanh": lambda y, keep: torch.where(keep, y, -torch.inf).max(1)[0].tanh(),
    "exp": lambda y, keep: y.masked_fill(~keep, -1e9).amax(1, keepdim=True).exp(),
    "clamp": lambda y, keep: (y - 9).masked_fill(~keep, -torch.inf).amax(1).clamp(-6.0, 6.0),
    "clamp of a minimum": lambda y, keep: y.masked_fill(~keep, torch.inf).amin(1).clamp(max=6.0),
    "relu": lambda y, keep: (y + 9).masked_fill(~keep, -torch.inf).amax(1).relu(),
    "larger than a number": lambda y, keep: torch.maximum(
        (y - 9).masked_fill(~keep, -torch.inf).amax(1), torch.tensor(-2.0)
    ),
    "larger than a layer": lambda y, keep: torch.max(y[:, 0] - 9, (y - 9).masked_fill(~keep, -torch.inf).amax(1)),
    "smaller": lambda y, keep: torch.minimum((y + 9).masked_fill(~keep, torch.inf).amin(1), y[:, 0] + 30),
    "of two segments": lambda y, keep: torch.maximum(
        (y - 9).masked_fill(~keep, -torch.inf).amax(1), (y - 9).masked_fill(keep, -torch.inf).amax(1)
    ),
    "stacked": lambda y, keep: torch.stack(
        [(y - 9).masked_fill(~keep, -torch.inf).amax(1), (y - 9).masked_fill(keep, -torch.inf).amax(1)], 1
    ).amax(1),
    "concatenated": lambda y, keep: torch.cat(
        [(y - 9).masked_fill(~keep, -torch.inf).amax(1, keepdim=True), y[:, :2] - 9], 1
    ).max(1)[0],
    "running": lambda y, keep: _running(y - 9, keep | (torch.arange(6)[:, None] > 3)),
}
"""Which make something else of the extremum of nothing."""


class Pooled(nn.Module):
    """The largest of valid steps, and a head: float32 [1 x 6 x 4], bool [1 x 6] -> [1 x 8]."""

    def __init__(self, function: _Function, shift: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.function, self.shift = nn.Linear(4, 8), function, shift

    def forward(self, x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        return self.function(self.linear(x) + self.shift, keep[..., None])


def samples(count: int) -> list[tuple[torch.Tensor, ...]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(SHAPES[0], generator=generator), torch.arange(6)[None] < 1 + index % 6) for index in range(count)
    ]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_results_are_those_of_pytorch(name: str) -> None:
    network = Pooled(FUNCTIONS[name]).eval()
    program = export(network, SHAPES, input_dtypes=DTYPES)
    assert "inf" not in str(program.graph)
    for x, keep in samples(6):
        for each in (keep, keep.flip(1)):
            result, wanted = program.module()(x, each), network(x, each)
            assert result.dtype == wanted.dtype
            assert torch.equal(result, wanted)


def test_a_maximum_of_two_tensors_keeps_its_number() -> None:
    """It was taken for a reduction, and the smallest of one tensor was in the result in place of the other's value."""
    network = Pooled(lambda y, keep: torch.max(y.masked_fill(~keep, -torch.inf), y - 100)).eval()
    for x, keep in samples(2):
        assert torch.equal(export(network, SHAPES, input_dtypes=DTYPES).module()(x, keep), network(x, keep))


@pytest.mark.parametrize("name", GUARDED)
def test_what_a_model_makes_of_nothing_is_in_the_program(name: str) -> None:
    """It looked for the number that was filled in, and found another one in its place."""
    network = Pooled(GUARDED[name]).eval()
    program = export(network, SHAPES, input_dtypes=DTYPES)
    for x, keep in [*samples(3), (samples(1)[0][0], torch.zeros(1, 6, dtype=torch.bool))]:
        torch.testing.assert_close(program.module()(x, keep), network(x, keep), rtol=0, atol=0)


@pytest.mark.parametrize("number", [-torch.inf, -1e9])
def test_a_softmax_of_maxima_leaves_out_where_nothing_is_left(number: float) -> None:
    """Attention over tokens by the best of their masked scores: padding had a share of the weights."""
    network = Pooled(lambda y, keep: y.masked_fill(~keep, number).amax(2).softmax(1)).eval()
    program = export(network, SHAPES, input_dtypes=DTYPES)
    assert "inf" not in str(program.graph)
    for x, keep in samples(6):
        torch.testing.assert_close(program.module()(x, keep), network(x, keep))


def _largest(y: torch.Tensor, keep: torch.Tensor, number: float = -1e9) -> torch.Tensor:
    return y.masked_fill(~keep, number).amax(-1)


COMPUTED: dict[str, _Function] = {
    "temperature": lambda y, keep: (_largest(y, keep) / 0.5).softmax(1),
    "of infinity": lambda y, keep: (2 * _largest(y, keep, -torch.inf)).softmax(1),
    "difference": lambda y, keep: (_largest(y, keep) - y[..., 0]).softmax(1),
    "sum": lambda y, keep: (y[..., 0] + (y + (~keep).float() * -1e9).max(-1)[0]).softmax(1),
    "order": lambda y, keep: (_largest(y, keep, -1e4) + y[..., 0]).softmax(1),
    "smallest": lambda y, keep: (1 - y.masked_fill(~keep, torch.inf).amin(-1)).softmax(1),
    "of groups": lambda y, keep: (
        y.view(1, 3, 2, 8).masked_fill(~keep.view(1, 3, 2, 1), -1e9).amax(2, keepdim=True) * 0.5
    ).softmax(1),
    "sum of exponentials": lambda y, keep: _largest(y, keep).logsumexp(1),
    "sigmoid": lambda y, keep: (_largest(y, keep) / 0.5 - y[..., 0]).sigmoid(),
    "negative": lambda y, keep: (1 - _largest(y, keep)).clamp(max=6.0),
    "compared": lambda y, keep: (_largest(y, keep) * 2 + y[..., 0]) < -1e8,
    "twice": lambda y, keep: (z := _largest(y, keep) / 0.5).softmax(1) * (z * keep[..., 0]),
    "of nothing to compute": lambda y, keep: (_largest(y, keep) * y[..., 0]) * keep[..., 0],
    "times zero": lambda y, keep: (_largest(y, keep) * 0).sigmoid(),
}
"""Of extrema of nothing, between them and what makes something else of these."""


@pytest.mark.parametrize("name", COMPUTED)
def test_what_is_computed_of_nothing_has_the_answer_of_the_number(name: str) -> None:
    """Padding had a share of the weights as soon as scores were divided by a temperature, or anything was added."""
    network = Pooled(COMPUTED[name]).eval()
    program = export(network, SHAPES, input_dtypes=DTYPES)
    assert "inf" not in str(program.graph)
    for x, keep in [*samples(6), (samples(1)[0][0], torch.zeros(1, 6, dtype=torch.bool))]:
        if keep.any() or name not in ("of infinity", "smallest"):  # NaN
            torch.testing.assert_close(program.module()(x, keep), network(x, keep))


@pytest.mark.parametrize("target", quick_first(["ethos_u55_128", "neutron_imxrt700", "cortex_m55", "xnnpack_cpu"]))
@pytest.mark.parametrize("name", ["temperature", "difference", "order"])
def test_what_is_computed_of_nothing_is_quantized(name: str, target: str) -> None:
    network, drawn, backend = Pooled(COMPUTED[name]).eval(), samples(12), create(target)
    program = quantized_network(network, backend, drawn)
    wanted, found = (torch.cat([each(*sample) for sample in drawn]) for each in (network, program.module()))
    assert sqnr_db(float(wanted.square().sum()), float((wanted - found).square().sum())) > 30


def test_what_a_mask_of_fewer_dimensions_leaves_is_found_for_any_batch() -> None:
    network = Pooled(lambda y, keep: _or_seven(y.masked_fill(~keep[0], -torch.inf).max(1)[0].unsqueeze(2))).eval()
    varying = [DynamicDimension(dim=0, min=1, max=4)]
    program = export(network, SHAPES, varying, input_dtypes=DTYPES)
    for keep in (torch.arange(6)[None] < 2, torch.zeros(1, 6, dtype=torch.bool)):
        x = torch.randn(3, 6, 4)
        assert torch.equal(program.module()(x, keep), network(x, keep))


@pytest.mark.parametrize("hidden", [torch.nan, torch.inf])
def test_what_the_mask_hides_has_no_say(hidden: float) -> None:
    """A quotient by zero that is masked made every maximum NaN, and leaves no steps for others if it is infinite."""
    network = Pooled(lambda y, keep: torch.where(keep, y, hidden).masked_fill(~keep, -torch.inf).amax(1)).eval()
    program = export(network, SHAPES, input_dtypes=DTYPES)
    for x, keep in samples(6):
        assert torch.equal(program.module()(x, keep), network(x, keep))


def test_integers_keep_their_number() -> None:
    network = Pooled(lambda y, keep: (0 * y).int().masked_fill(keep, torch.iinfo(torch.int32).min).argmax(1)).eval()
    program = export(network, SHAPES, input_dtypes=DTYPES)
    for x, keep in samples(6):
        assert torch.equal(program.module()(x, keep), network(x, keep))


def test_what_else_reads_an_infinite_number_keeps_it() -> None:
    both = Pooled(lambda y, keep: (filled := y.masked_fill(~keep, -torch.inf)).amax(1) + filled.exp().sum(1))
    assert "-inf" in str(export(both.eval(), SHAPES, input_dtypes=DTYPES).graph)


@pytest.mark.parametrize("shift", [0.0, -400.0])
@pytest.mark.parametrize("target", quick_first(["ethos_u55_128", "ethos_u85_256", "neutron_imxrt700"], quick=1))
def test_the_quantized_program_keeps_the_resolution(target: str, shift: float) -> None:
    """Arm's -256 left small values one or two steps, and won over values below."""
    network, drawn = Pooled(FUNCTIONS["amax"], shift).eval(), samples(12)
    program = quantized_network(network, create(target), drawn)
    expected, actual = (torch.cat([each(*sample) for sample in drawn]) for each in (network, program.module()))
    assert (actual - expected).abs().max() < 0.02 * (abs(shift) + 3)


@pytest.mark.parametrize(
    "target", quick_first(["ethos_u85_256", "ethos_u55_128", "cortex_m55", "xnnpack_cpu"], quick=1)
)
@pytest.mark.parametrize("function", [FUNCTIONS["amax"], GUARDED["isinf"]], ids=["amax", "guarded"])
def test_it_is_built(function: _Function, target: str) -> None:
    drawn = [(x, keep & (index % 4 > 0)) for index, (x, keep) in enumerate(samples(10))]
    verdict, detail = lowered(Pooled(function).eval(), drawn, create(target))
    assert verdict == "right", detail


PADDED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "images": lambda y: nn.functional.max_pool2d(nn.functional.pad(y[:, None], (0, 1, 0, 1), value=-torch.inf), 3, 2),
    "both sides": lambda y: nn.functional.max_pool2d(nn.functional.pad(y[:, None], (1, 2, 1, 2), value=-1e9), 4, 2),
    "sequences": lambda y: nn.functional.max_pool1d(nn.functional.pad(y, (1, 0), value=-torch.inf), 2, 1),
}
VANISHING: dict[str, _Function] = {
    "sigmoid": lambda y, keep: torch.where(keep, y + 4, -torch.inf).sigmoid(),
    "exp": lambda y, keep: y.masked_fill(~keep, -torch.inf).exp(),
}


@pytest.mark.parametrize("name", [*PADDED, *VANISHING])
def test_infinities_that_no_result_has_are_not_in_the_program(name: str) -> None:
    """Such models were refused, or had 6 to 9 dB on an Ethos-U."""
    network = Pooled(VANISHING.get(name, lambda y, keep: PADDED[name](y) + 0 * keep.sum())).eval()
    program = export(network, SHAPES, input_dtypes=DTYPES)
    assert "inf" not in str(program.graph)
    assert "-1000000000" not in str(program.graph)
    for x, keep in samples(6):
        assert torch.equal(program.module()(x, keep), network(x, keep))


@pytest.mark.parametrize(("kernel", "dilation"), [(1, 1), (2, 3)])
def test_a_padding_that_windows_see_alone_stays(kernel: int, dilation: int) -> None:
    network = Pooled(
        lambda y, keep: nn.functional.max_pool1d(
            nn.functional.pad(y, (2, 0), value=-torch.inf), kernel, 1, dilation=dilation
        )
    ).eval()
    program = export(network, SHAPES, input_dtypes=DTYPES)
    x, keep = samples(1)[0]
    assert torch.equal(program.module()(x, keep), network(x, keep))


@pytest.mark.parametrize("target", quick_first(["ethos_u55_128", "cortex_m55", "neutron_imxrt700"]))
@pytest.mark.parametrize("name", quick_first(["images", "sigmoid"]))
def test_what_no_result_has_is_built(name: str, target: str) -> None:
    class Between(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.linear = nn.Linear(4, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.linear(x)
            return PADDED[name](y) if name in PADDED else VANISHING[name](y, torch.arange(8) < 6)

    verdict, detail = lowered(Between().eval(), [sample[:1] for sample in samples(8)], create(target))
    assert verdict == "right", detail
