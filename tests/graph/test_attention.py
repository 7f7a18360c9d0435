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
