"""lowerdeck.graph.softmax_by_hand: quotients of exponentials that are a softmax."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from benchmarks.in_turns import create
from benchmarks.networks import lowered
from lowerdeck.steps.export import export
from tests.marks import quick_first

SHAPES, DTYPES = [[1, 6, 6], [1, 6]], ["float32", "bool"]
VALUES = torch.randn(6, 6, generator=torch.Generator().manual_seed(2))
_Function = Callable[[torch.Tensor], torch.Tensor]


def _exponentials(y: torch.Tensor, dim: int = 1) -> torch.Tensor:
    return (y - y.amax(dim, keepdim=True)).exp()


BY_HAND: dict[str, _Function] = {
    "amax": lambda y: (e := _exponentials(y)) / e.sum(1, keepdim=True),
    "max": lambda y: torch.div(e := (y - y.max(-2, keepdim=True)[0]).exp(), e.sum(-2, keepdim=True)),
    "other dimensions": lambda y: (e := (y - y.max(1).values[:, None]).exp()) / e.sum(1).unsqueeze(1),
    "epsilon": lambda y: (e := _exponentials(y)) / (e.sum(1, keepdim=True) + 1e-9),
    "of all": lambda y: (e := (y - y.max()).exp()) / e.sum(1, keepdim=True),
    "rows of nothing": lambda y: ((e := _exponentials(y)) / e.sum(1, keepdim=True)).transpose(1, 2).nan_to_num(7.0),
    "reciprocal": lambda y: (e := _exponentials(y)) * (1 / e.sum(1, keepdim=True)),
    "reciprocal first": lambda y: (e := _exponentials(y)).sum(1, keepdim=True).reciprocal() * e,
    "power": lambda y: (e := _exponentials(y)) * (e.sum(1, keepdim=True) + 1e-9) ** -1,
    "normalized behind": lambda y: VALUES @ (e := _exponentials(y)) / (e.sum(1, keepdim=True) + 1e-8),
    "first of a product": lambda y: ((e := _exponentials(y.mT, 2)) @ VALUES) / e.sum(-1, keepdim=True),
    "bmm": lambda y: torch.bmm(e := _exponentials(y.mT, 2), VALUES[None]) * (1 / e.sum(-1, keepdim=True)),
    "no maximum": lambda y: (e := y.exp()) / e.sum(1, keepdim=True),
    "rows of nothing without a maximum": lambda y: ((e := y.exp()) / e.sum(1, keepdim=True)).nan_to_num(7.0),
    "detached": lambda y: (e := (y - y.detach().amax([1, 2], True)).exp()) / e.sum(1, True),
}
OF_IMAGES: dict[str, _Function] = {
    "two dimensions": lambda y: (e := (y - y.amax((1, 2), True)).exp()) / e.sum((1, 2), True),
    "all dimensions": lambda y: (e := (y - y.max()).exp()) / e.sum(),
    "three of four": lambda y: (e := ((z := y[:, None]) - z.amax()).exp()) / e.sum((-1, 1, 2), keepdim=True),
}
OTHERS: dict[str, _Function] = {
    "other rows": lambda y: (e := _exponentials(y)) / e.sum(2, keepdim=True),
    "no row": lambda y: (e := (y - y.amax(2, keepdim=True)).exp()) / e.sum(2),
    "exponentials are read": lambda y: (e := _exponentials(y)) / e.sum(1, keepdim=True) + e,
    "a large epsilon": lambda y: (e := _exponentials(y)) / (e.sum(1, keepdim=True) + 0.5),
    "an epsilon without a maximum": lambda y: (e := y.exp()) / (e.sum(1, keepdim=True) + 1e-9),
    "dimensions that are apart": lambda y: (e := (y[:, None] - y.max()).exp()) / e.sum((0, 3), keepdim=True),
    "other rows of a product": lambda y: ((e := _exponentials(y)) @ y) / e.sum(1, keepdim=True),
    "a product that is read": lambda y: (v := VALUES @ (e := _exponentials(y))) / e.sum(1, True) + v,
    "no reciprocal": lambda y: (e := _exponentials(y)) * e.sum(1, keepdim=True),
    "NaN of a product": lambda y: (y @ (e := _exponentials(y)) / e.sum(1, keepdim=True)).nan_to_num(),
    "a mean": lambda y: (e := _exponentials(y)) / e.mean(1, keepdim=True),
    "the other way round": lambda y: (e := _exponentials(y)).sum(1, keepdim=True) / e,
}


class Weights(nn.Module):
    """What a function makes of scores: float32 [1 x 6 x 6], bool [1 x 6] -> [1 x 6 x 6]."""

    def __init__(self, function: _Function, number: float | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.function, self.number = nn.Linear(6, 6), function, number

    def forward(self, x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        return self.function(y if self.number is None else y.masked_fill(~keep[..., None], self.number))


def samples(count: int) -> list[tuple[torch.Tensor, ...]]:
    torch.manual_seed(1)
    return [(torch.randn(SHAPES[0]), torch.arange(6)[None] < 1 + index % 6) for index in range(count)]


@pytest.mark.parametrize("number", [None, -torch.inf, -1e9])
@pytest.mark.parametrize("name", BY_HAND | OF_IMAGES)
def test_it_is_a_softmax(name: str, number: float | None) -> None:
    network = Weights((BY_HAND | OF_IMAGES)[name], number).eval()
    program = export(network, SHAPES, input_dtypes=DTYPES)
    called = str(program.graph)
    is_named = name in BY_HAND or number is not None
    assert ("softmax" in called) is is_named
    assert not is_named or not any(each in called for each in ("exp.", "sum", "max.dim", "amax", "inf", "-1000000000"))
    for x, keep in samples(6):
        torch.testing.assert_close(program.module()(x, keep), network(x, keep))


def test_rows_of_nothing_are_what_the_model_makes_of_nan() -> None:
    network = Weights(BY_HAND["rows of nothing"], -torch.inf).eval()
    given = torch.randn(SHAPES[0]), torch.zeros(SHAPES[1], dtype=torch.bool)
    assert network(*given).unique().tolist() == [7]
    torch.testing.assert_close(export(network, SHAPES, input_dtypes=DTYPES).module()(*given), network(*given))


SUBTRACTED: dict[str, _Function] = {
    "another tensor": lambda y: (e := (y - (2 * y).amax(1, keepdim=True)).exp()) / e.sum(1, keepdim=True),
    "a factor": lambda y: (e := torch.sub(y, y.amax(1, keepdim=True), alpha=2).exp()) / e.sum(1, keepdim=True),
    "other rows": lambda y: (e := (y - y.mean(2, keepdim=True)).exp()) / e.sum(1, keepdim=True),
}


@pytest.mark.parametrize("name", SUBTRACTED)
def test_what_is_subtracted_but_a_maximum_stays(name: str) -> None:
    network = Weights(SUBTRACTED[name]).eval()
    program = export(network, SHAPES, input_dtypes=DTYPES)
    assert "aten.softmax" in str(program.graph)
    assert "aten.sub" in str(program.graph)
    for x, keep in samples(2):
        torch.testing.assert_close(program.module()(x, keep), network(x, keep))


def test_a_stored_mask_of_an_image_counts() -> None:
    mask = torch.zeros(6, 6).masked_fill(torch.eye(6).bool(), -torch.inf)
    network = Weights(lambda y: OF_IMAGES["two dimensions"](y / 2 + mask)).eval()
    program = export(network, SHAPES, input_dtypes=DTYPES)
    assert "softmax" in str(program.graph)
    for x, keep in samples(2):
        torch.testing.assert_close(program.module()(x, keep), network(x, keep))


@pytest.mark.parametrize("number", [-torch.inf, -1e9])
def test_rows_of_nothing_without_a_maximum_are_what_the_model_makes_of_nan(number: float) -> None:
    network = Weights(BY_HAND["rows of nothing without a maximum"], number).eval()
    given = torch.randn(SHAPES[0]), torch.zeros(SHAPES[1], dtype=torch.bool)
    assert network(*given).unique().tolist() == [7]
    torch.testing.assert_close(export(network, SHAPES, input_dtypes=DTYPES).module()(*given), network(*given))


@pytest.mark.parametrize("name", OTHERS)
def test_anything_else_stays(name: str) -> None:
    network = Weights(OTHERS[name]).eval()
    program = export(network, SHAPES, input_dtypes=DTYPES)
    assert "softmax" not in str(program.graph)
    for x, keep in samples(2):
        torch.testing.assert_close(program.module()(x, keep), network(x, keep))


@pytest.mark.parametrize("target", quick_first(["ethos_u55_128", "neutron_imxrt700", "cortex_m55"]))
@pytest.mark.parametrize("number", quick_first([-torch.inf, -1e9]))
@pytest.mark.parametrize(
    "name", quick_first(["max", "two dimensions", "reciprocal", "normalized behind", "no maximum"])
)
def test_behind_a_mask_it_is_built(name: str, number: float, target: str) -> None:
    """With minus infinity it was refused, and with -1e9 it had 3 to 9 dB."""
    verdict, detail = lowered(Weights((BY_HAND | OF_IMAGES)[name], number).eval(), samples(8), create(target))
    assert verdict == "right", detail
