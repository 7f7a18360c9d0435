"""Patterns are spared only where nothing of them can stand in the program."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from executorch.backends.xnnpack.partition.graphs import bilinear_2d, sdpa
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import to_edge_transform_and_lower

from lowerdeck.backends.xnnpack.backend import Xnnpack
from lowerdeck.backends.xnnpack.options import Device, Options
from lowerdeck.backends.xnnpack.patterns import ATTENTION, INTERPOLATION, possible_patterns
from lowerdeck.graph.nodes import operator_name
from tests.marks import quick_first


class Attention(torch.nn.Module):
    mask: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.full((4, 4), -1.0).triu(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=self.mask)


class Interpolation(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)


class Neither(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.sigmoid(x)


def operators(graph: torch.fx.Graph) -> set[str]:
    return {operator_name(node) for node in graph.nodes if node.op == "call_function"}


@pytest.mark.slow
def test_the_operators_asked_for_stand_in_every_pattern() -> None:
    assert all(ATTENTION in operators(pattern.graph) for pattern in sdpa.get_graphs())
    assert all(operators(pattern.graph).intersection(INTERPOLATION) for pattern in bilinear_2d.get_graphs_dict())


@pytest.mark.slow
@pytest.mark.parametrize("network", quick_first([Attention(), Interpolation(), Neither()]))
def test_the_program_is_the_same_as_with_all_patterns(network: torch.nn.Module, tmp_path: Path) -> None:
    exported = torch.export.export(network.eval(), (torch.randn(1, 2, 4, 8),))

    def lowered() -> bytes:
        partitioners = [XnnpackPartitioner()]
        return bytes(to_edge_transform_and_lower(exported, partitioner=partitioners).to_executorch().buffer)

    plain = lowered()
    with Xnnpack(device=Device(), options=Options()).compiling(tmp_path) as partitions:
        assert lowered() == plain
    assert partitions, "something has been compiled"


def test_what_a_program_has_none_of_is_not_looked_for() -> None:
    given = sdpa.get_graphs, bilinear_2d.get_graphs_dict
    with possible_patterns(torch.export.export(Neither(), (torch.randn(1, 2),))):
        assert not sdpa.get_graphs()
        assert not bilinear_2d.get_graphs_dict()
    assert given == (sdpa.get_graphs, bilinear_2d.get_graphs_dict)
