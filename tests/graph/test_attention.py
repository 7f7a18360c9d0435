"""Attention as products and a softmax: the same values, and more of it on NPUs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.in_turns import create
from benchmarks.networks import lowered
from lowerdeck.contracts.backends import DynamicDimension
from lowerdeck.steps.export import export
from tests.marks import quick_first

SHAPE = [1, 6, 8]


class Attention(nn.Module):
    """Two heads, whose queries see all keys or those before them: [1 x 6 x 8] -> same."""

    def __init__(self, is_causal: bool, scale: float | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.parts, self.out = nn.Linear(8, 24), nn.Linear(8, 8)
        self.is_causal, self.scale = is_causal, scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (part.unflatten(2, (2, 4)).transpose(1, 2) for part in self.parts(x).chunk(3, -1))
        x = F.scaled_dot_product_attention(query, key, value, is_causal=self.is_causal, scale=self.scale)
        found: torch.Tensor = self.out(x.transpose(1, 2).flatten(2))
        return found


@pytest.mark.parametrize(("is_causal", "scale"), [(False, None), (True, None), (False, 0.3)])
def test_the_values_are_those_of_attention(is_causal: bool, scale: float | None) -> None:
    network, values = Attention(is_causal, scale).eval(), torch.randn(SHAPE)
    program = export(network, [SHAPE])
    called = [str(node.target) for node in program.graph.nodes]
    assert "aten.scaled_dot_product_attention.default" not in called
    assert not any("triu" in name or "ones" in name for name in called)
    torch.testing.assert_close(program.module()(values), network(values))


def test_a_mask_of_the_model_stays_with_it() -> None:
    """Where it leaves nothing, attention is 0, and a softmax NaN."""

    class Masked(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.scaled_dot_product_attention(x, x, x, attn_mask=torch.zeros(6, 6, dtype=torch.bool))

    values = torch.randn(SHAPE)
    assert torch.equal(export(Masked(), [SHAPE]).module()(values), torch.zeros(SHAPE))


def test_a_causal_mask_of_sequences_that_vary_stays_with_them() -> None:
    """A program with the mask of one length was refused."""
    network, length = Attention(is_causal=True).eval(), DynamicDimension(dim=1, min=2, max=12)
    program = export(network, [SHAPE], (length,))
    for count in (3, 12):
        values = torch.randn(1, count, 8)
        torch.testing.assert_close(program.module()(values), network(values))


class Padded(nn.Module):
    """Attention of two heads whose keys are valid or not: [1 x 6 x 8], bool [1 x 6] -> [1 x 6 x 8]."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.parts = nn.Linear(8, 24)

    def forward(self, x: torch.Tensor, is_valid: torch.Tensor) -> torch.Tensor:
        query, key, value = (part.unflatten(2, (2, 4)).transpose(1, 2) for part in self.parts(x).chunk(3, -1))
        mask = is_valid[:, None, None]
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask).transpose(1, 2).flatten(2)


def padded(count: int) -> list[tuple[torch.Tensor, ...]]:
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(SHAPE, generator=generator), torch.arange(6)[None] < index % 7) for index in range(count)]


def test_a_mask_that_is_an_input_may_leave_nothing() -> None:
    program = export(Padded().eval(), [SHAPE, [1, 6]], input_dtypes=["float32", "bool"])
    assert "aten.scaled_dot_product_attention.default" not in {str(node.target) for node in program.graph.nodes}
    for inputs in padded(7):
        torch.testing.assert_close(program.module()(*inputs), Padded()(*inputs))


@pytest.mark.parametrize(
    "target", quick_first(["ethos_u55_128", "ethos_u85_256", "neutron_imxrt700", "cortex_m55"], quick=1)
)
def test_every_target_computes_a_mask_that_is_an_input(target: str) -> None:
    """Where nothing is left, Arm's passes gave the mean of all values."""
    verdict, detail = lowered(Padded().eval(), padded(14), create(target))
    assert verdict == "right", detail


LATER = torch.ones(6, 6).triu(1).bool()
SMALLEST = torch.full((6, 6), torch.finfo(torch.float32).min).triu(1)
SLOPES = (torch.arange(6.0)[:, None] - torch.arange(6)) / 2
OF_NUMBERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "filled": lambda mask: torch.zeros_like(mask, dtype=torch.float).masked_fill_(mask, -torch.inf),
    "moved": lambda mask: (
        torch.zeros(6, 6).masked_fill(mask.t(), -torch.inf).view(6, 2, 3).reshape(6, 6).transpose(0, 1).float()
    ),
    "two": lambda mask: (
        torch.zeros(1, 6).masked_fill(mask[:1], -torch.inf) + torch.zeros(6, 6).masked_fill(LATER, -torch.inf)
    ),
    "chosen": lambda mask: torch.where(mask, -torch.inf, 0.0),
    "kept": lambda mask: torch.where(~mask[:1], torch.zeros(6, 6), torch.tensor(-torch.inf)),
    "number in a tensor": lambda mask: torch.zeros(6, 6).masked_fill(mask, torch.tensor(-torch.inf)),
    "finite": lambda mask: torch.zeros(6, 6).masked_fill(mask, -1e9),
    "smallest": lambda mask: torch.where(mask, torch.finfo(torch.float32).min, 0.0),
    "product": lambda mask: (1 - (~mask).float()) * -1e9,
    "negative": lambda mask: ((~mask).float() - 1) * 1e9,
    "ones filled": lambda mask: (ones := mask.float()).masked_fill(ones.bool(), torch.finfo(torch.float32).min),
    "filled twice": lambda mask: torch.zeros(6, 6).masked_fill(LATER, -1e9).masked_fill(mask, -1e9),
    "BERT": lambda mask: (1.0 - (~mask[:1]).float()) * -10000.0,
    "chosen as BERT": lambda mask: torch.where(mask, -10000.0, 0.0),
    "sum of two numbers": lambda mask: torch.where(mask, -1e9, 0.0) + torch.zeros(6, 6).masked_fill(LATER, -torch.inf),
    "twice": lambda mask: torch.where(mask, -3e38, 0.0) + torch.where(mask, -3e38, 0.0),
    "copied": lambda mask: (copied := SMALLEST.clone()).copy_(copied.masked_fill(mask, torch.finfo(torch.float32).min)),
    "smallest twice": lambda mask: (
        torch.full((6, 6), torch.finfo(torch.float32).min).triu(1)
        + (1 - (~mask).float()) * torch.finfo(torch.float32).min
    ),
    "moved sum": lambda mask: (SMALLEST + torch.where(mask, SMALLEST[0, 1], 0.0)).unsqueeze(0).expand(1, 6, 6),
    "moved bias": lambda mask: torch.where(mask, -torch.inf, SLOPES).double().unsqueeze(0).float(),
    "finite bias": lambda mask: SLOPES.masked_fill(mask, -1e9),
    "sum with bias": lambda mask: (
        SLOPES + torch.zeros(6, 6).masked_fill(LATER, -torch.inf).masked_fill(mask, -torch.inf)
    ),
    "large bias": lambda mask: torch.full((6, 6), -1e4).triu(1).masked_fill(mask, -torch.inf),
    "chosen bias": lambda mask: torch.where(mask, -torch.inf, torch.ones(6, 6).triu(1)),
    "sum": lambda mask: torch.zeros(6, 6).masked_fill(mask, -torch.inf) + mask,
    "filled bias": lambda mask: torch.ones(6, 6).triu(1).masked_fill(mask, -torch.inf),
    "number": lambda mask: mask.to(torch.float),
}


@pytest.mark.parametrize("name", OF_NUMBERS)
def test_a_mask_of_numbers_that_is_filled_in_is_one_of_booleans(name: str) -> None:
    """As in torch.nn.MultiheadAttention without weights, and transformers. Others stay: they may say more than that."""

    class Masked(nn.Module):
        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return F.scaled_dot_product_attention(x, x, x, attn_mask=OF_NUMBERS[name](mask))

    mask = torch.rand(6, 6, generator=torch.Generator().manual_seed(0)) > 0.6
    mask[2] = True
    program = export(Masked(), [SHAPE, [6, 6]], input_dtypes=["float32", "bool"])
    stays = "aten.scaled_dot_product_attention.default" in {str(node.target) for node in program.graph.nodes}
    assert stays == (name in ("sum of two numbers", "large bias"))
    for given in (mask, torch.zeros_like(mask)):
        values = torch.randn(SHAPE)
        torch.testing.assert_close(program.module()(values, given), Masked()(values, given))


def test_numbers_of_segments_are_no_booleans() -> None:
    """A number other than 0 and 1 says more than what is left out: the largest one of a row decides."""

    class Segments(nn.Module):
        def forward(self, x: torch.Tensor, segments: torch.Tensor) -> torch.Tensor:
            return F.scaled_dot_product_attention(x, x, x, attn_mask=(1 - segments.float())[:, None] * -1e9)

    values, segments = torch.randn(SHAPE), torch.tensor([[0, 2, 1, 3, 0, 1]], dtype=torch.int32)
    program = export(Segments(), [SHAPE, [1, 6]], input_dtypes=["float32", "int32"])
    assert "aten.scaled_dot_product_attention.default" not in {str(node.target) for node in program.graph.nodes}
    torch.testing.assert_close(program.module()(values, segments), Segments()(values, segments))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["smallest twice", "finite bias", "copied"])
def test_ethos_u_computes_masks_with_more_than_a_padding(name: str) -> None:
    """Left whole, they had infinite sums, or took the steps of the scores."""

    class Masked(Attention):
        def forward(self, x: torch.Tensor, is_valid: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            query, key, value = (part.unflatten(2, (2, 4)).transpose(1, 2) for part in self.parts(x).chunk(3, -1))
            mask = OF_NUMBERS[name](is_valid.logical_not().expand(6, 6))
            x = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
            found: torch.Tensor = self.out(x.transpose(1, 2).flatten(2))
            return found

    samples = [each for each in padded(14) if each[1].any()]
    verdict, detail = lowered(Masked(is_causal=False).eval(), samples, create("ethos_u55_128"))
    assert verdict == "right", detail


def test_a_row_of_a_constant_mask_may_leave_nothing() -> None:
    class Earlier(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            earlier = torch.ones(6, 6, dtype=torch.bool).tril(-1)
            return F.scaled_dot_product_attention(x, x, x, attn_mask=earlier)

    values, program = torch.randn(SHAPE), export(Earlier(), [SHAPE])
    assert "aten.scaled_dot_product_attention.default" not in {str(node.target) for node in program.graph.nodes}
    torch.testing.assert_close(program.module()(values), Earlier()(values))


@pytest.mark.slow
@pytest.mark.parametrize("target", ["ethos_u55_128", "cortex_m55"])
def test_queries_in_groups_share_keys_and_values(target: str) -> None:
    """Values that are wider than keys ended Arm's own decomposition in an exception."""

    class Grouped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.query, self.key, self.value = nn.Linear(8, 8), nn.Linear(8, 4), nn.Linear(8, 6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            parts = ((self.query, 4), (self.key, 2), (self.value, 2))
            query, key, value = (layer(x).unflatten(-1, (heads, -1)).transpose(1, 2) for layer, heads in parts)
            attended = F.scaled_dot_product_attention(query, key, value, enable_gqa=True)
            return attended.transpose(1, 2).flatten(2)

    generator = torch.Generator().manual_seed(1)
    drawn = [(torch.randn(SHAPE, generator=generator),) for _ in range(10)]
    torch.testing.assert_close(export(Grouped(), [SHAPE]).module()(*drawn[0]), Grouped()(*drawn[0]))
    verdict, detail = lowered(Grouped().eval(), drawn, create(target))
    assert verdict == "right", detail


def test_a_learned_bias_is_added() -> None:
    """A table of relative positions, as in Swin: without products, all of the attention stays in float."""

    class Biased(Attention):
        def __init__(self) -> None:
            super().__init__(is_causal=False)
            self.table, self.last = nn.Parameter(torch.randn(11, 2)), 5

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            query, key, value = (part.unflatten(2, (2, 4)).transpose(1, 2) for part in self.parts(x).chunk(3, -1))
            distance = torch.arange(6)[:, None] - torch.arange(6) + self.last
            bias = self.table[distance].permute(2, 0, 1)
            x = F.scaled_dot_product_attention(query, key, value, attn_mask=bias)
            found: torch.Tensor = self.out(x.transpose(1, 2).flatten(2))
            return found

    network, values = Biased().eval(), torch.randn(SHAPE)
    program = export(network, [SHAPE])
    assert "aten.scaled_dot_product_attention.default" not in {str(node.target) for node in program.graph.nodes}
    torch.testing.assert_close(program.module()(values), network(values))


def test_views_of_the_result_do_not_depend_on_the_kernel() -> None:
    """PyTorch chooses it, and with it the strides of the result, by whether gradients are on."""

    class Viewed(Attention):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            query, key, value = (part.unflatten(2, (2, 4)).transpose(1, 2) for part in self.parts(x).chunk(3, -1))
            mask = key[..., :1].transpose(2, 3)
            x = F.scaled_dot_product_attention(query, key, value, attn_mask=mask.expand(1, 2, 6, 6))
            found: torch.Tensor = self.out(x.transpose(1, 2).view(1, 6, 8))
            return found

    network, values = Viewed(is_causal=False).eval(), torch.randn(SHAPE)
    with torch.no_grad():
        expected = network(values)
    torch.testing.assert_close(export(network, [SHAPE]).module()(values), expected)


@pytest.mark.parametrize(
    ("target", "is_causal"),
    quick_first(
        [
            (target, is_causal)
            for target in ("neutron_imxrt700", "cortex_m55", "ethos_u85_256", "xnnpack_cpu")
            for is_causal in (True, False)
        ]
    ),
)
def test_every_target_computes_it(target: str, is_causal: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    samples = [(torch.randn(SHAPE, generator=generator),) for _ in range(8)]
    verdict, detail = lowered(Attention(is_causal).eval(), samples, create(target))
    assert verdict == "right", detail
    delegated, total = (int(number) for number in detail.split(" operators")[0].split(" of "))
    assert target == "cortex_m55" or delegated >= total / 2
