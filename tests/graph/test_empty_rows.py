"""Models that look for NaN where a mask leaves nothing of a row."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.in_turns import create
from benchmarks.networks import lowered
from lowerdeck.contracts.backends import DynamicDimension
from lowerdeck.steps.export import export
from tests.marks import quick_first

SHAPE = [1, 8, 16]
LATER = torch.ones(8, 8).triu(1).bool()
INFINITE = torch.zeros(8, 8).masked_fill(LATER, -torch.inf)
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
    "divided": lambda scores, kept: (scores.masked_fill(~kept, -torch.inf) / 8).softmax(-1).nan_to_num(),
    "times a buffer": lambda scores, kept: (
        (torch.tensor([0.125]) * torch.where(kept, scores, -torch.inf)).softmax(-1).nan_to_num()
    ),
    "negated": lambda scores, kept: (-scores.masked_fill(~kept, torch.inf)).softmax(-1).nan_to_num(),
    "subtracted": lambda scores, kept: (scores - torch.where(kept, 0.0, torch.inf)).softmax(-1).nan_to_num(),
    "never itself": lambda scores, kept: (
        scores.masked_fill(~kept, -torch.inf).masked_fill(torch.eye(8).bool(), 0.0).softmax(-1).nan_to_num()
    ),
    "chosen twice": lambda scores, kept: (
        torch.where(LATER, -torch.inf, torch.where(kept, scores, -torch.inf)).softmax(-1).nan_to_num()
    ),
    "constant": lambda scores, kept: (scores * kept).masked_fill(LATER.mT, -torch.inf).softmax(-1).nan_to_num(),
    "no mask": lambda scores, kept: (scores * kept).softmax(-1).nan_to_num(),
}


Behind: TypeAlias = Callable[[Tensor, Tensor], Tensor]
BEHIND: dict[str, Behind] = {
    "entropy": lambda weights, value: (weights * weights.log()).nan_to_num().sum(-1),
    "logarithm": lambda weights, value: torch.where((weights * weights.log()).isnan(), 0.0, weights),
    "infinite buffer": lambda weights, value: torch.nan_to_num(weights + INFINITE, neginf=-3.0),
    "arc cosine": lambda weights, value: torch.nan_to_num(value.acos() * (weights @ value)),
    "squares": lambda weights, value: torch.nan_to_num((weights @ value) ** 2),
    "share of keys": lambda weights, value: torch.nan_to_num(weights / weights.sum(1, keepdim=True)) @ value,
    "product": lambda weights, value: (weights @ value).nan_to_num(),
    "product of NaN": lambda weights, value: (value.mT @ weights).nan_to_num(),
    "batches": lambda weights, value: torch.bmm(weights, value).isnan().to(torch.float32),
    "linear": lambda weights, value: F.linear(weights, torch.ones(4, 8)).nan_to_num(),
    "addmm": lambda weights, value: torch.addmm(torch.ones(8, 16), weights[0], value[0]).nan_to_num(),
    "heads": lambda weights, value: (
        torch.stack([weights, weights * 0.5], 1).mean(1).nan_to_num() + torch.cat([weights, weights], 1)[:, 8:].gt(0.1)
    ),
    "concatenated": lambda weights, value: torch.cat([value, weights @ value], -1).nan_to_num(),
    "residual": lambda weights, value: (value + (weights @ value).relu() * 0.5).nan_to_num(),
    "layer norm": lambda weights, value: F.layer_norm(weights @ value + value, [16]).nan_to_num(),
    "activations": lambda weights, value: (
        F.hardtanh(F.hardsigmoid(F.gelu(weights.neg().clamp(-1, 1)))).nan_to_num()
        + F.leaky_relu(F.hardswish(weights).sigmoid()).isfinite()
    ),
    "sum": lambda weights, value: weights.masked_fill(weights.sum(-1, keepdim=True).isnan(), 0.0),
    "sum of queries": lambda weights, value: weights.sum(1).nan_to_num() + weights.amax((1, 2)).isfinite(),
    "turned round": lambda weights, value: (weights.flip(1) @ value).nan_to_num(),
    "rolled": lambda weights, value: weights.roll(3, 1).roll(1, -1).nan_to_num(0.5),
    "cumulative sum": lambda weights, value: weights.cumsum(-1).gt(0.5).to(torch.float32),
    "cumulative sum of queries": lambda weights, value: weights.cumsum(1).nan_to_num(),
    "normalized": lambda weights, value: (weights / weights.sum(-1, keepdim=True)).nan_to_num(),
    "twice": lambda weights, value: (weights @ value).nan_to_num() + (weights @ value).isnan(),
    "again": lambda weights, value: ((weights.nan_to_num() @ value) * 3).nan_to_num(),
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


class Asking(nn.Module):
    """float32 [1 x 8 x 16], bool [1 x 8] or [8 x 8] -> what is made of weights [1 x 8 x 8], float32."""

    def __init__(self, behind: Behind) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.parts, self.behind = nn.Linear(16, 48), behind

    def forward(self, x: Tensor, kept: Tensor) -> Tensor:
        query, key, value = self.parts(x).chunk(3, -1)
        return self.behind((query @ key.mT).masked_fill(~kept, -torch.inf).softmax(-1), value)


@pytest.mark.parametrize("name", BEHIND)
def test_what_is_computed_of_rows_of_nothing_is_what_the_model_makes_of_nan(name: str) -> None:
    """The program had numbers wherever the model did not ask the weights themselves."""
    network = Asking(BEHIND[name]).eval()
    program = export(network, [SHAPE, [8, 8]], input_dtypes=["float32", "bool"])
    for x, keys in samples():
        for kept in (keys.expand(8, 8), keys[:, None].expand(8, 8), keys & keys[:, None] & ~LATER):
            torch.testing.assert_close(program.module()(x, kept), network(x, kept))


class Layers(nn.Module):
    """float32 [2 x 8 x 16], bool [2 x 8] -> [2 x 8 x 16]: layers of torch, and their padded rows as zeros."""

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, x: Tensor, padded: Tensor) -> Tensor:
        if isinstance(self.layers, nn.MultiheadAttention):
            return torch.nan_to_num(self.layers(x, x, x, key_padding_mask=padded)[0])
        found: Tensor = self.layers(x, src_key_padding_mask=padded).nan_to_num()
        return found


@pytest.mark.parametrize("kind", ["attention", "encoder"])
def test_torchs_own_attention_may_be_asked(kind: str) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    network = Layers(
        nn.MultiheadAttention(16, 2, batch_first=True) if kind == "attention" else nn.TransformerEncoder(layer, 2)
    ).eval()
    program = export(network, [[2, 8, 16], [2, 8]], input_dtypes=["float32", "bool"])
    for first, second in ((8, 3), (0, 8), (0, 0), (2, 8)):
        given = torch.randn(2, 8, 16), torch.arange(8) < torch.tensor([[first], [second]])
        torch.testing.assert_close(program.module()(*given), network(*given), rtol=1e-4, atol=1e-5)


class Heads(nn.Module):
    """float32 [n x 8 x 16], bool [n x 8] -> [2 n x 8 x 8]: an attention whose heads are further elements of a batch."""

    def forward(self, x: Tensor, kept: Tensor) -> Tensor:
        size = x.shape[0]
        heads = x.view(size, 8, 2, 8).transpose(1, 2).reshape(size * 2, 8, 8)
        scores = torch.bmm(heads, heads.mT).view(size, 2, 8, 8).masked_fill(~kept[:, None, None], -torch.inf)
        return torch.bmm(scores.view(size * 2, 8, 8).softmax(-1), heads).nan_to_num()


def test_masks_are_seen_through_views_of_dynamic_batches() -> None:
    """The size of a view is one of its arguments there, beside what it views."""
    dimension = [DynamicDimension(input=each, dim=0, min=2, max=8, name="batch") for each in (0, 1)]
    program = export(Heads(), [[3, 8, 16], [3, 8]], dimension, input_dtypes=["float32", "bool"])
    for size in (2, 5):
        given = torch.randn(size, 8, 16), torch.arange(8) < torch.arange(size)[:, None] * 3
        torch.testing.assert_close(program.module()(*given), Heads()(*given))


def test_a_mask_that_leaves_something_everywhere_needs_no_answer() -> None:
    """It is known while the model is exported, so that nothing is computed for it."""
    network = Attention(lambda scores, kept: (scores * kept).masked_fill(LATER, -torch.inf).softmax(-1).nan_to_num())
    program = export(network.eval(), [SHAPE, [8]], input_dtypes=["float32", "bool"])
    names = {str(each.target) for each in program.graph.nodes}
    assert names.isdisjoint({"aten.all.dim", "aten.masked_fill.Scalar"})
    for given in samples():
        torch.testing.assert_close(program.module()(*given), network(*given))


@pytest.mark.parametrize("target", quick_first(["ethos_u55_128", "neutron_imxrt700", "cortex_m55", "xnnpack_cpu"]))
@pytest.mark.parametrize("name", quick_first(["nan_to_num", "where", "two masks", "divided"]))
def test_they_are_built(name: str, target: str) -> None:
    verdict, detail = lowered(Attention(WEIGHTS[name]).eval(), samples(), create(target))
    assert verdict == "right", detail
