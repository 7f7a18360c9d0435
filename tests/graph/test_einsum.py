"""lowerdeck.graph.einsum: products that quantizers know."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from benchmarks.in_turns import create
from benchmarks.networks import lowered
from lowerdeck.contracts.backends import DynamicDimension
from lowerdeck.steps.export import export
from tests.marks import quick_first

SHAPE = [1, 6, 8]
EQUATIONS = {
    "scores": "bid,bjd->bij",
    "reversed": "b i d, b j d -> b j i",
    "batch behind": "idb,jdb->bij",
    "outer": "bi,bj->bij",
    "trace": "bii->b",
    "three": "bid,bjd,bjk->bik",
    "sum": "bid->d",
    "repeated": "bid,bjd->bij",
    "implicit": "bid,bjd",
}


class Multiplied(nn.Module):
    def __init__(self, equation: str) -> None:
        super().__init__()
        self.equation = equation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        square = x @ x.transpose(1, 2)
        given = {
            "outer": (x[:, 0], x[:, 1]),
            "trace": (square,),
            "three": (x, x, x),
            "sum": (x,),
            "repeated": (x[..., :1], x),
        }
        return torch.einsum(EQUATIONS[self.equation], *given.get(self.equation, (x, x.flip(1))))


@pytest.mark.parametrize("equation", EQUATIONS)
def test_the_products_are_the_same(equation: str) -> None:
    network, values = Multiplied(equation).eval(), torch.randn(SHAPE)
    program = export(network, [SHAPE])
    assert "aten.einsum.default" not in {str(node.target) for node in program.graph.nodes}
    torch.testing.assert_close(program.module()(values), network(values))


def test_an_order_that_opt_einsum_found_is_no_hindrance() -> None:
    """torch.einsum passes it to the operator wherever that package is installed, as it is with JAX."""

    class Ordered(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = torch.ops.aten.einsum("bid,bjd,bjk->bik", [x, x, x], path=[0, 1, 0, 1])
            return result

    values = torch.randn(SHAPE)
    torch.testing.assert_close(export(Ordered(), [SHAPE]).module()(values), Ordered()(values))


def test_varying_sizes_stay() -> None:
    network = Multiplied("scores").eval()
    program = export(network, [SHAPE], (DynamicDimension(input=0, dim=1, min=2, max=6),))
    for size in (2, 5):
        values = torch.randn(1, size, 8)
        torch.testing.assert_close(program.module()(values), network(values))


class Attention(nn.Module):
    """Two heads, as many vision transformers write them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.parts, self.last = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.parts(x).view(1, 6, 3, 2, 4).permute(2, 0, 3, 1, 4)
        weights = torch.einsum("bhid,bhjd->bhij", query, key).softmax(-1)
        found: torch.Tensor = self.last(torch.einsum("bhij,bhjd->bhid", weights, value).transpose(1, 2).flatten(2))
        return found


def test_products_of_an_attention_are_matrix_products() -> None:
    program = export(Attention().eval(), [SHAPE])
    targets = [str(node.target) for node in program.graph.nodes]
    assert targets.count("aten.matmul.default") == 2
    assert not any("expand" in target for target in targets)


@pytest.mark.parametrize("target", quick_first(["neutron_imxrt700", "cortex_m55", "ethos_u55_128", "xnnpack_cpu"]))
def test_every_target_runs_an_attention_of_einsums(target: str) -> None:
    samples = [(torch.randn(SHAPE, generator=torch.Generator().manual_seed(number)),) for number in range(8)]
    verdict, detail = lowered(Attention().eval(), samples, create(target))
    assert verdict == "right", detail
