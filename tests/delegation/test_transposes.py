"""lowerdeck.delegation.transposes against what reads the same graphs independently of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from ai_edge_litert.interpreter import Interpreter
from torch import nn
from tosa import Op, TosaGraph

from lowerdeck.backends.xnnpack.serialized import read_graph
from lowerdeck.contracts.lowering import CompiledPartition
from lowerdeck.delegation.transposes import with_transposes
from tests.conftest import Lowered
from tests.marks import quick_first
from tests.networks import lowered_network


class Turned(nn.Module):
    """A convolution, and its result turned by the model itself: [1 x 8 x 4 x 4] -> [1 x 16 x 8]."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.convolution = nn.Conv2d(8, 8, 3, padding=1)
        self.head = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.convolution(x).flatten(2).transpose(1, 2))
        return scores


def in_tosa(graph: bytes) -> int:
    regions = TosaGraph.TosaGraph.GetRootAs(graph, 0)
    block = regions.Regions(0).Blocks(0)
    return [block.Operators(index).Op() for index in range(block.OperatorsLength())].count(Op.Op.TRANSPOSE)


def in_litert(model: bytes) -> int:
    operators = Interpreter(model_content=model, num_threads=1)._get_ops_details()
    return [operator["op_name"] for operator in operators].count("TRANSPOSE")


COUNTED: dict[str, Callable[[bytes], int]] = {
    "ethos_u55_128": in_tosa,
    "neutron_imxrt700": in_litert,
    "xnnpack_cpu": lambda payload: read_graph(payload).operators.count("XNNStaticTranspose"),
}


@pytest.mark.parametrize("target", quick_first(COUNTED))
def test_all_transposes_of_a_partition_are_counted(
    lowered: Callable[[str], Lowered], tmp_path: Path, target: str
) -> None:
    turned = lowered_network(Turned().eval(), [1, 8, 4, 4], lowered(target).backend(), tmp_path)
    for partition in (*lowered(target).converted.partitions, *turned.partitions):
        graph = partition.payload if target == "xnnpack_cpu" else partition.twin
        assert graph is not None
        assert partition.transposes == COUNTED[target](graph)
    assert sum(partition.transposes or 0 for partition in turned.partitions) > 0


def test_what_a_backend_says_itself_stands() -> None:
    partition = CompiledPartition(payload=b"", twin=b"no graph", twin_format="tosa", transposes=7)
    assert with_transposes(partition).transposes == 7
    assert with_transposes(CompiledPartition(payload=b"")).transposes is None


@pytest.mark.parametrize("twin_format", ["tosa", "litert"])
def test_a_damaged_twin_is_an_error(twin_format: str) -> None:
    with pytest.raises(ValueError, match="not a"):
        with_transposes(CompiledPartition(payload=b"", twin=b"not a graph at all", twin_format=twin_format))
