"""Which nodes of a program have the number of a mask beside scores whose differences count."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from lowerdeck.graph.mask_numbers import masked_outputs, masked_values
from lowerdeck.steps.export import export
from tests.quantization.test_masked_values import KEPT, SHAPES, Policy

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


def _kept(function: Callable[[Tensor], Tensor]) -> list[str]:
    network = Policy(lambda x, _: function(x)).eval()
    module = export(network, SHAPES).module(check_guards=False)
    assert isinstance(module, torch.fx.GraphModule)
    return [node.name for node in masked_values(module)]


def test_nothing_else_stays_in_float() -> None:
    assert _kept(lambda x: x.log_softmax(-1)) == []
    assert _kept(lambda x: x.masked_fill(KEPT == 0, -1e9).softmax(-1)) == []
    assert _kept(lambda x: x.masked_fill(KEPT == 0, -1e9).amax(-1) + x.log_softmax(-1).amax(-1)) == []
    assert _kept(lambda x: x.masked_fill(KEPT == 0, -1e9).log_softmax(-1).exp() * 2) == [
        *("masked_fill", "log_softmax", "exp")
    ]


PLAIN: dict[str, Callable[[Tensor], Tensor]] = {
    "large factor": lambda x: (x * 20000.0).log_softmax(-1),
    "large negative factor": lambda x: (x * -20000.0).log_softmax(-1),
    "factors": lambda x: (x * torch.arange(10) * 1e4 + x).log_softmax(-1),
    "large term": lambda x: (x + 20000.0).logsumexp(-1),
    "negative term": lambda x: (x - 20000.0).logsumexp(-1),
    "large number": lambda x: torch.where(x > 0, x, 1e5).log_softmax(-1),
    "bounded": lambda x: x.masked_fill(KEPT == 0, -1e9).clamp(min=-50.0).log_softmax(-1),
    "rectified": lambda x: x.masked_fill(KEPT == 0, -1e9).relu().log_softmax(-1),
    "distances with a limit": lambda x: (-x.masked_fill(KEPT == 0, 1e9).clamp(max=50.0)).log_softmax(-1),
    "means of quantities": lambda x: x * 300 + torch.tensor([101325.0, -23900.0, 288, 0, 1, 2, 3, 4, 5, 6]),
    "events": lambda x: x + (x > 0).float() * 20000.0,
    "constant quantities": lambda x: torch.cat([x, torch.tensor([[0.0, 101325.0]])], -1),
    "constant term returned": lambda x: x + torch.full((10,), 20000.0),
    "softmax": lambda x: x.masked_fill(KEPT == 0, -1e9).softmax(-1) @ torch.eye(10),
    "order": lambda x: x.topk(3)[0],
    "largest of a layer": lambda x: (x.masked_fill(KEPT == 0, -1e9).softmax(-1) @ torch.eye(10)).topk(3)[0],
    "gathered at the first": lambda x: (2 * x).gather(1, x.log_softmax(-1).topk(3)[1]),
    "normalized": lambda x: nn.functional.layer_norm(x.masked_fill(KEPT == 0, -1e9), [10]).log_softmax(-1),
    "usual logarithm": lambda x: (x + (x.exp() + 1).log()).log_softmax(-1),
}


@pytest.mark.parametrize("name", PLAIN)
def test_large_numbers_that_leave_out_nothing_are_quantized(name: str) -> None:
    assert _kept(PLAIN[name]) == []


def test_what_reads_bounded_numbers_is_quantized() -> None:
    assert _kept(lambda x: x.masked_fill(KEPT == 0, -1e9).log_softmax(-1).clamp(min=-9.0) * 2) == [
        *("masked_fill", "log_softmax", "clamp")
    ]


def test_what_is_read_at_places_of_an_order_is_quantized() -> None:
    """Indices are no numbers of a mask."""
    kept = _kept(lambda x: (2 * x).gather(1, x.masked_fill(KEPT == 0, -1e9).topk(3)[1]) * 3)
    assert kept == ["masked_fill", "topk", "getitem_1"]


def test_attention_of_torch_stays_as_it_is() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
            found: tuple[Tensor, Tensor] = self.attention(x, x, x, key_padding_mask=mask > 0)
            return found

    assert masked_values(export(Attention().eval(), [[1, 6, 8], [1, 6]])) == []


EXACT, ADDED = 1e-6, 0.01
OUTPUTS: dict[str, tuple[Callable[[Tensor], Tensor], tuple[tuple[float, float], ...]]] = {
    "filled": (lambda x: x.masked_fill(KEPT == 0, -1e9), ((-1e9, EXACT),)),
    "infinite": (lambda x: x.masked_fill(KEPT == 0, -math.inf).unsqueeze(0), ((-math.inf, EXACT),)),
    "scaled": (lambda x: x.masked_fill(KEPT == 0, -math.inf) * x.sigmoid() / 2, ((-math.inf, EXACT),)),
    "halved": (lambda x: x.masked_fill(KEPT == 0, -1e9) / 2 * -1, ((5e8, EXACT),)),
    "bounded": (lambda x: x.masked_fill(KEPT == 0, -1e9).clamp(min=-5e4), ((-5e4, EXACT),)),
    "costs": (lambda x: torch.where(KEPT > 0, x, 1e9), ((1e9, EXACT),)),
    "negative": (lambda x: -(x + (1 - KEPT) * -1e9), ((1e9, ADDED),)),
    "subtracted": (lambda x: x - (x > 0).float() * 1e9, ((-1e9, ADDED),)),
    "twice": (
        lambda x: x + (1 - KEPT) * -1e9 + (x > 0) * -1e8,
        ((-1.1e9, ADDED), (-1e9, ADDED), (-1e8, ADDED)),
    ),
    "logarithms": (lambda x: x.masked_fill(KEPT == 0, -1e9).log_softmax(-1), ((-1e9, ADDED),)),
    "logarithm added": (
        lambda x: x + torch.clamp(torch.log((x > 0).float()), min=-1e8),
        ((-1e8, ADDED),),
    ),
    "softmax": (lambda x: x.masked_fill(KEPT == 0, -1e9).softmax(-1), ()),
    "usual": (lambda x: x * 3, ()),
    "means": (lambda x: x * 300 + torch.tensor([101325.0, *[0.0] * 9]), ()),
    "events": (lambda x: x + (x > 0).float() * 20000.0, ()),
    "constant quantities": (lambda x: torch.cat([x, torch.tensor([[0.0, 101325.0]])], -1), ()),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_outputs_have_the_numbers_of_their_masks(name: str) -> None:
    function, numbers = OUTPUTS[name]
    (found,) = masked_outputs(export(Policy(lambda x, _: function(x)).eval(), SHAPES))
    assert [share for _, share in found] == [share for _, share in numbers]
    assert [number for number, _ in found] == pytest.approx([number for number, _ in numbers])


SEVERAL: dict[str, Callable[[Tensor], Any]] = {
    "split": lambda x: torch.split(x.view(5, 2), 1, -1),
    "unbound": lambda x: x.view(2, 5).unbind(0),
    "chunks": lambda x: x.chunk(2, -1),
    "largest": lambda x: x.topk(7)[0],
    "sorted": lambda x: x.sort(-1)[0],
    "in a stable order": lambda x: x.sort(stable=True, dim=-1)[0],
    "largest of each": lambda x: x.view(5, 2).max(-1)[0],
    "of rank": lambda x: x.kthvalue(3)[0],
    "with places": lambda x: x.topk(7),
}


@pytest.mark.parametrize("name", SEVERAL)
def test_outputs_of_operators_with_several_results_have_the_numbers_of_their_masks(name: str) -> None:
    """The metric counted -1e9 as signal: 200 dB."""
    masked = Policy(lambda x, given: SEVERAL[name](x + (1.0 - given) * -1e9)).eval()
    found = masked_outputs(export(masked, SHAPES))
    assert found == ([((-1e9, ADDED),), ()] if name == "with places" else [((-1e9, ADDED),)] * len(found))


def test_inputs_that_a_layer_reads_are_no_masks() -> None:
    class Residual(nn.Module):
        def __init__(self, factor: float) -> None:
            super().__init__()
            self.layer, self.factor = nn.Linear(10, 10), factor

        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = x * self.factor + self.layer(x) * self.factor
            return found

    for factor in (2e4, -2e4):
        exported = export(Residual(factor).eval(), [[1, 10]])
        assert masked_outputs(exported) == [()]
        assert masked_values(exported) == []


def test_masks_of_floats_are_found_in_an_output() -> None:
    (found,) = masked_outputs(export(Policy(lambda x, given: x + (1.0 - given) * -1e9).eval(), SHAPES))
    assert found == ((-1e9, ADDED),)


@pytest.mark.slow
def test_a_filter_of_many_steps_is_looked_through() -> None:
    def filtered(x: Tensor) -> Tensor:
        level = other = x
        for _ in range(600):  # more than Python's stack has place for, and 2^600 ways from the end to the input
            level, other = 0.5 * level + 0.5 * other, level
        return level * 32768.0 + x

    assert _kept(filtered) == []
    assert _kept(lambda x: filtered(x).log_softmax(-1)) == []
