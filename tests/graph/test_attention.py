"""Attention as products and a softmax: the same values, and more of it on NPUs."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.in_turns import create
from benchmarks.networks import lowered
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
