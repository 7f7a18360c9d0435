"""Which nodes of a program have the number of a mask beside scores whose differences count."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

from lowerdeck.evaluation import quantization_error
from lowerdeck.graph import masked_scores
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


OUTPUTS: dict[str, tuple[Callable[[Tensor], Tensor], tuple[int, ...]]] = {
    "filled": (lambda x: x.masked_fill(KEPT == 0, -1e9), (-1,)),
    "infinite": (lambda x: x.masked_fill(KEPT == 0, -math.inf).unsqueeze(0), (-1,)),
    "costs": (lambda x: torch.where(KEPT > 0, x, 1e9), (1,)),
    "negative": (lambda x: -(x + (1 - KEPT) * -1e9), (1,)),
    "softmax": (lambda x: x.masked_fill(KEPT == 0, -1e9).softmax(-1), ()),
    "usual": (lambda x: x * 3, ()),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_outputs_have_the_signs_of_their_masks(name: str) -> None:
    function, signs = OUTPUTS[name]
    assert masked_outputs(export(Policy(lambda x, _: function(x)).eval(), SHAPES)) == [signs]


def test_metrics_have_the_same_limit() -> None:
    assert quantization_error.MASKED == -masked_scores.MASKED
