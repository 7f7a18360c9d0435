"""lowerdeck.compat.remembered_layouts: an operator is executed once for the same layouts, and for others again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from executorch.exir import to_edge
from executorch.exir.dialects.edge._ops import EdgeOpOverload
from executorch.exir.pass_base import ExportPass
from torch import nn

from lowerdeck.compat.fast_graph_passes import fast_graph_passes


class Twice(nn.Module):
    """Two equal layers, and one of another size."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x.sigmoid().sigmoid(), x[:, :2].sigmoid()], 1)


def edge(network: nn.Module, size: int = 4) -> Any:
    return to_edge(torch.export.export(network, (torch.zeros(1, size),))).exported_program().graph_module


@pytest.fixture
def executed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the operators that were executed."""
    names: list[str] = []
    call: Callable[..., Any] = EdgeOpOverload.__call__

    def counted(self: EdgeOpOverload, *args: Any, **kwargs: Any) -> Any:
        names.append(self.__name__)
        return call(self, *args, **kwargs)

    monkeypatch.setattr(EdgeOpOverload, "__call__", counted)
    return names


def layouts(module: torch.fx.GraphModule) -> list[tuple[str, Any]]:
    return [(node.name, getattr(node.meta.get("val"), "shape", None)) for node in module.graph.nodes]


def test_a_pass_gives_the_same_graph_and_executes_each_layout_once(executed: list[str]) -> None:
    module = edge(Twice())
    plain = ExportPass()(module)
    executed.clear()
    with fast_graph_passes():
        first = ExportPass()(module)
        again = ExportPass()(first.graph_module)
    assert layouts(again.graph_module) == layouts(plain.graph_module)
    assert sorted(executed) == ["aten.cat.default", *["aten.sigmoid.default"] * 2, "aten.slice_copy.Tensor"]
    assert torch.equal(again.graph_module(torch.ones(1, 4))[0], Twice()(torch.ones(1, 4)))


def test_other_arguments_and_sizes_are_executed(executed: list[str]) -> None:
    class Sums(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.add(x, x, alpha=2) + torch.add(x, x, alpha=2.0) + x.sum(1, keepdim=True)

    modules = [edge(Sums(), size) for size in (4, 5)]
    executed.clear()
    with fast_graph_passes():
        for module in modules:
            ExportPass()(module)
    assert executed.count("aten.add.Tensor") == 8
    assert executed.count("aten.sum.dim_IntList") == 2


def test_sizes_that_depend_on_values_are_new_each_time() -> None:
    class Positive(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return (x > 0).nonzero(), (x > 0).nonzero()

    module = edge(Positive())
    with fast_graph_passes():
        again = ExportPass()(module).graph_module
    first, second = (str(value.meta["val"].shape[0]) for value in again.graph.output_node().args[0])
    assert first != second
