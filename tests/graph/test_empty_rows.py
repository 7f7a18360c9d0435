"""Models that look for NaN where a mask leaves nothing of a row."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import pytest
import torch
from torch import Tensor, nn

from benchmarks.in_turns import create
from benchmarks.networks import lowered
from lowerdeck.steps.export import export
from tests.marks import quick_first

SHAPE = [1, 8, 16]
LATER = torch.ones(8, 8).triu(1).bool()
Weights: TypeAlias = Callable[[Tensor, Tensor], Tensor]


def _where_nan(scores: Tensor, kept: Tensor) -> Tensor:
    weights = scores.masked_fill(~kept, -torch.inf).softmax(-1)
    return torch.where(torch.isnan(weights), 0.0, weights)


def _filled_where_nan(scores: Tensor, kept: Tensor) -> Tensor:
    weights = torch.where(kept, scores, -torch.inf).softmax(-1)
    return weights.masked_fill(weights.isnan(), 0.0)


def _all_nan(scores: Tensor, kept: Tensor) -> Tensor:
    weights = scores.masked_fill(~kept, -torch.inf).softmax(-1)
    return torch.where(weights.isnan().all(-1, keepdim=True), torch.ones_like(scores), weights.nan_to_num())


WEIGHTS: dict[str, Weights] = {
    "nan_to_num": lambda scores, kept: scores.masked_fill(~kept, -torch.inf).softmax(-1).nan_to_num(0.0),
    "where": _where_nan,
    "masked_fill": _filled_where_nan,
    "all": _all_nan,
    "finite": lambda scores, kept: torch.where(
        (w := scores.masked_fill(~kept, -torch.inf).softmax(-1)).isfinite(), w, 0.0
    ),
    "unlike itself": lambda scores, kept: torch.where(
        (w := scores.masked_fill(~kept, -torch.inf).softmax(-1)) != w, 0.5, w
    ),
    "like itself": lambda scores, kept: torch.where(
        (w := scores.masked_fill(~kept, -torch.inf).softmax(-1)) == w, w, 0.0
    ),
    "more than a number": lambda scores, kept: torch.where(
        (w := scores.masked_fill(~kept, -torch.inf).softmax(-1)).mT.gt(0.125).mT, w, 0.0
    ),
    "not a number": lambda scores, kept: torch.where(
        (w := scores.masked_fill(~kept, -torch.inf).softmax(-1)).ne(0.125), w.nan_to_num(), 0.0
    ),
    "another number": lambda scores, kept: torch.nan_to_num(
        torch.where(~kept, -torch.inf, scores).softmax(-1), nan=0.125
    ),
    "of heads": lambda scores, kept: (
        torch.stack([scores, scores * 2], 1)
        .masked_fill(~kept[None, None, None], -torch.inf)
        .softmax(-1)
        .transpose(1, 2)
        .nan_to_num()
        .sum(2)
    ),
    "along queries": lambda scores, kept: scores.masked_fill(~kept, -torch.inf).softmax(-2).nan_to_num(),
    "two masks": lambda scores, kept: (
        scores.masked_fill(LATER, -torch.inf).masked_fill(~kept, -torch.inf).softmax(-1).nan_to_num()
    ),
    "added": lambda scores, kept: (
        (scores + torch.zeros(8, 8).masked_fill(LATER, -torch.inf) + torch.where(kept, 0.0, -torch.inf))
        .softmax(-1)
        .nan_to_num()
    ),
    "added constant": lambda scores, kept: (
        (scores * kept + torch.zeros(8, 8).masked_fill(LATER.mT, -torch.inf)).softmax(-1).nan_to_num()
    ),
    "no mask": lambda scores, kept: (scores * kept).softmax(-1).nan_to_num(),
}


class Attention(nn.Module):
    """float32 [1 x 8 x 16], bool [8] -> [1 x 8 x 16]."""

    def __init__(self, weights: Weights) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.parts, self.weights = nn.Linear(16, 48), weights

    def forward(self, x: Tensor, kept: Tensor) -> Tensor:
        query, key, value = self.parts(x).chunk(3, -1)
        found: Tensor = self.weights(query @ key.mT, kept) @ value
        return found


def samples() -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(SHAPE, generator=generator), torch.arange(8) >= first) for first in (0, 3, 5, 2, 0, 8, 6, 1)]


@pytest.mark.parametrize("name", WEIGHTS)
def test_rows_of_nothing_are_what_the_model_makes_of_nan(name: str) -> None:
    """They had equal weights, in the exported program already, where no sample that was compared had such a row."""
    network = Attention(WEIGHTS[name]).eval()
    program = export(network, [SHAPE, [8]], input_dtypes=["float32", "bool"])
    for given in samples():
        torch.testing.assert_close(program.module()(*given), network(*given))


@pytest.mark.parametrize("target", quick_first(["ethos_u55_128", "neutron_imxrt700", "cortex_m55", "xnnpack_cpu"]))
@pytest.mark.parametrize("name", quick_first(["nan_to_num", "where", "two masks"]))
def test_they_are_built(name: str, target: str) -> None:
    verdict, detail = lowered(Attention(WEIGHTS[name]).eval(), samples(), create(target))
    assert verdict == "right", detail
