"""lowerdeck.graph.function_transforms: torch.vmap and torch.func in a model."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch._higher_order_ops.associative_scan import associative_scan

from benchmarks.in_turns import create
from benchmarks.networks import lowered
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.steps.export import export
from tests.marks import quick_first


class Rows(nn.Module):
    """A transform between two layers."""

    def __init__(self, transform: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.transform = transform
        self.first, self.inner, self.last = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(self.transform(self.inner, self.first(x).relu()))
        return y


def _added(one: Tensor, other: Tensor) -> Tensor:
    return one + other


TRANSFORMS: dict[str, Callable[[nn.Module, Tensor], Tensor]] = {
    "rows": lambda layer, y: torch.vmap(lambda row: layer(row).relu() * row.sum())(y),
    "pairs": lambda _, y: torch.vmap(lambda row: torch.vmap(lambda other: row * other)(y).sum(0))(y),
    "columns": lambda _, y: torch.vmap(lambda column: column - column.mean(), in_dims=1)(y).mT,
    "associative_scan": lambda _, y: associative_scan(_added, y, 1, combine_mode="generic"),
    "jvp": lambda layer, y: torch.func.jvp(layer, (y,), (y,))[1],
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_transform_is_what_it_computes(name: str) -> None:
    """Vmap and associative_scan were refused: "Cannot access storage of BatchedTensorImpl"."""
    network, x = Rows(TRANSFORMS[name]).eval(), torch.randn(4, 8)
    with torch.no_grad():
        torch.testing.assert_close(export(network, [[4, 8]]).module()(x), network(x))


@pytest.mark.parametrize("target", quick_first(["xnnpack_cpu", "neutron_imxrt700", "cortex_m55", "ethos_u55_128"]))
def test_layers_within_vmap_are_lowered(target: str) -> None:
    torch.manual_seed(0)
    network = Rows(TRANSFORMS["rows"]).eval()
    verdict, detail = lowered(network, [(torch.randn(4, 8),) for _ in range(16)], create(target))
    assert verdict == "right", detail


@pytest.mark.parametrize(
    "function", [lambda _, z: z.square().sum(), lambda layer, z: layer(z).square().sum()], ids=["operators", "layer"]
)
def test_a_gradient_of_torch_func_is_refused(function: Callable[[nn.Module, Tensor], Tensor]) -> None:
    network = Rows(lambda layer, y: torch.func.grad(lambda z: function(layer, z))(y))
    with pytest.raises(LowerdeckError, match=r"gradients by torch\.func .* Write the derivative out") as refused:
        export(network, [[4, 8]])
    assert "MetaTensorDesc" not in str(refused.value)


def test_out_dims_are_refused_with_what_to_write() -> None:
    with pytest.raises(LowerdeckError, match=r"out_dims of torch\.vmap is not 0, where the result is to be tr"):
        export(Rows(lambda _, y: torch.vmap(lambda row: row * 2, out_dims=1)(y).mT), [[4, 8]])


def test_vmap_before_a_branch_is_exported_and_in_it_refused() -> None:
    def outside(layer: nn.Module, y: Tensor) -> Tensor:
        chosen: Tensor = torch.cond(y.sum() > 9, torch.sin, torch.cos, (TRANSFORMS["rows"](layer, y),))
        return chosen

    network, x = Rows(outside).eval(), torch.randn(4, 8)
    with torch.no_grad():
        torch.testing.assert_close(export(network, [[4, 8]]).module()(x), network(x))

    def centre(y: Tensor) -> Tensor:
        centred: Tensor = torch.vmap(lambda row: row - row.mean())(y)
        return centred

    network = Rows(lambda _, y: torch.cond(y.sum() > 9, torch.sin, centre, (y,)))
    with pytest.raises(LowerdeckError, match=r"_transforms\.py:\d+\) .*\nCall torch\.vmap outside of torch\.cond"):
        export(network, [[4, 8]])
