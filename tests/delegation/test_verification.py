"""lowerdeck.delegation.verification: lowering that does otherwise than planned is found out, whatever the tags say."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from executorch.exir import EdgeProgramManager
from executorch.exir.backend.partitioner import PartitionResult
from torch import nn
from torch.export import ExportedProgram
from torch.fx import GraphModule

from lowerdeck.backends.xnnpack.backend import Xnnpack
from lowerdeck.backends.xnnpack.options import Device, Options
from lowerdeck.contracts.errors import LowerdeckError, PartitionCompilationError
from lowerdeck.contracts.lowering import Lowering
from lowerdeck.delegation.coverage import coverage
from lowerdeck.delegation.partition_chain import partition_chain
from lowerdeck.delegation.verification import check_lowered_program
from lowerdeck.graph.nodes import DELEGATION_TAG
from lowerdeck.graph.state import state_nodes
from lowerdeck.steps.convert import convert
from lowerdeck.steps.export import export
from lowerdeck.steps.partition import Partitioned, partition
from tests.conftest import Lowered
from tests.networks import quantized_mixed


class Forgetful(Xnnpack):
    """Tags all nodes as planned, and then tells ExecuTorch nothing of the second partition."""

    def lowering(self, program: ExportedProgram) -> Lowering:
        lowering = super().lowering(program)
        decide = lowering.partitioner.partition

        def partition_and_forget(program: ExportedProgram) -> PartitionResult:
            result = decide(program)
            kept = dict(list(result.partition_tags.items())[:1])
            return PartitionResult(tagged_exported_program=result.tagged_exported_program, partition_tags=kept)

        lowering.partitioner.partition = partition_and_forget
        return lowering


class Hoarding(Xnnpack):
    """Takes state for a constant of the first partition that reads it, as XNNPACK's partitioner does with weights."""

    def lowering(self, program: ExportedProgram) -> Lowering:
        lowering = super().lowering(program)
        decide = lowering.partitioner.partition

        def partition_and_hoard(program: ExportedProgram) -> PartitionResult:
            result = decide(program)
            for node in state_nodes(result.tagged_exported_program):
                tags = (user.meta.get(DELEGATION_TAG) for user in node.users)
                node.meta[DELEGATION_TAG] = next(filter(None, tags), None)
            return result

        lowering.partitioner.partition = partition_and_hoard
        return lowering


class Decaying(nn.Module):
    """State that a later call reads: float32 [2 x 8] -> [2 x 8]."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.state = nn.Linear(8, 8), nn.Buffer(torch.ones(2, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.layer(x) * self.state
        self.state.copy_(self.state * 0.5 + torch.sort(result).values)
        return result


@pytest.fixture(scope="module")
def mixed() -> Partitioned:
    """The network of two partitions, planned for XNNPACK."""
    return partition(
        quantized_mixed(Xnnpack(device=Device(), options=Options())), Xnnpack(device=Device(), options=Options())
    )


def manager(planned: Partitioned) -> EdgeProgramManager:
    return EdgeProgramManager({"forward": planned.program}, None, planned.edge_config)


@pytest.fixture(scope="module")
def lowered_mixed(mixed: Partitioned) -> GraphModule:
    """What to_backend makes of it."""
    lowered = manager(mixed).to_backend(Xnnpack(device=Device(), options=Options()).lowering(mixed.program).partitioner)
    module: GraphModule = lowered.exported_program().graph_module
    return module


def test_a_backend_that_leaves_what_it_tagged_is_found_out(mixed: Partitioned, tmp_path: Path) -> None:
    with pytest.raises(LowerdeckError) as caught:
        convert(manager(mixed), mixed.plan, Forgetful(device=Device(), options=Options()), tmp_path)
    message = str(caught.value)
    assert message.startswith("xnnpack lowered the program differently than planned: ")
    assert (
        "planned for the delegate and left on the CPU: quantized_decomposed_dequantize_per_channel_default" in message
    )


def test_state_that_becomes_a_constant_names_what_reads_it(tmp_path: Path) -> None:
    """What was written got lost, with the delegate that computed it, or the program had its first value for ever."""
    planned = partition(export(Decaying(), [[2, 8]]), Hoarding(device=Device(), options=Options()))
    with pytest.raises(PartitionCompilationError, match="takes state for a constant of the delegate: state") as at:
        convert(manager(planned), planned.plan, Hoarding(device=Device(), options=Options()), tmp_path)
    assert {"aten_mul_tensor"} <= at.value.nodes <= {"aten_mul_tensor", "aten_mul_tensor_1"}
    convert(manager(planned), planned.plan, Xnnpack(device=Device(), options=Options()), tmp_path)


def test_the_lowered_program_is_as_planned(mixed: Partitioned, lowered_mixed: GraphModule) -> None:
    check_lowered_program(lowered_mixed, mixed.plan)


def test_each_way_to_differ_is_named(mixed: Partitioned, lowered_mixed: GraphModule) -> None:
    def said(**changes: dict[str, Any]) -> str:
        nodes = tuple(dataclasses.replace(node, **changes.get(node.name, {})) for node in mixed.plan.nodes)
        with pytest.raises(LowerdeckError) as caught:
            check_lowered_program(lowered_mixed, dataclasses.replace(mixed.plan, nodes=nodes))
        return str(caught.value)

    assert "planned for the CPU and delegated: aten_relu_default" in said(aten_relu_default={"partition": None})
    assert "left on the CPU: aten_topk_default" in said(aten_topk_default={"partition": "tag0"})
    renamed = said(aten_relu_default={"name": "elsewhere"})
    assert "planned and no longer in the program: elsewhere" in renamed
    assert "in the program and not planned: aten_relu_default" in renamed
    assert "the same nodes are delegated, in other partitions" in said(aten_relu_default={"partition": "another"})


class Shared(nn.Module):
    """One result that the CPU, another partition and the caller take: float32 [2 x 8] -> three of [2 x 8]."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = self.first(x)
        ordered, order = torch.sort(y, dim=-1)
        return y, self.second(ordered) + y, order


def handed_over(lowered: GraphModule) -> list[torch.Tensor]:
    """What delegates take and give, each delegate for itself."""
    calls = [node for node in lowered.graph.nodes if "executorch_call_delegate" in str(node.target)]
    taken = [given.meta["val"] for call in calls for given in call.args[1:]]
    return [value for call in calls for value in call.meta["val"]] + taken


def test_crossings_are_what_delegates_take_and_give(mixed: Partitioned, lowered_mixed: GraphModule) -> None:
    values, metrics = handed_over(lowered_mixed), coverage(mixed.plan)
    assert metrics["crossings"] == len(values) == 4
    assert metrics["crossing_bytes"] == sum(value.numel() * value.element_size() for value in values)


@pytest.mark.parametrize(("per_op_mode", "partitions"), [(False, 2), (True, 3)])
def test_a_tensor_that_several_take_crosses_once_for_each(per_op_mode: bool, partitions: int) -> None:
    backend = Xnnpack(device=Device(), options=Options(per_op_mode=per_op_mode))
    planned = partition(export(Shared(), [[2, 8]]), backend)
    lowered = manager(planned).to_backend(partition_chain(backend.lowering(planned.program)))
    values, metrics = handed_over(lowered.exported_program().graph_module), coverage(planned.plan)
    check_lowered_program(lowered.exported_program().graph_module, planned.plan)
    assert metrics["partitions"] == partitions
    assert metrics["crossings"] == len(values)
    assert metrics["crossing_bytes"] == sum(value.numel() * value.element_size() for value in values)


def test_metrics_of_the_small_network(lowered: Callable[[str], Lowered]) -> None:
    """One partition on XNNPACK, quantize and dequantize included: float32 [1 x 3 x 32 x 32] -> [1 x 10]."""
    metrics = coverage(lowered("xnnpack_cpu").plan)
    macs = 16 * 16 * 8 * 3 * 9 + 16 * 16 * 8 * 8 * 9 + 8 * 10
    assert (metrics["total_macs"], metrics["undelegated_macs"]) == (macs, 0)
    assert metrics["total_parameters"] == 8 * 3 * 9 + 8 + 8 * 8 * 9 + 8 + 8 * 10 + 10
    assert metrics["delegated_parameter_share"] == 1.0
    assert (metrics["crossings"], metrics["crossing_bytes"]) == (2, 4 * (3 * 32 * 32 + 10))
