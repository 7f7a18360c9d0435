"""What Neutron's options keep on the CPU: the plan, the program, and what the program computes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import chdir
from pathlib import Path

import pytest
import torch
from torch import nn

from lowerdeck.artifacts.conversion import write_converted
from lowerdeck.artifacts.edge_programs import read_edge_program, write_edge_program
from lowerdeck.artifacts.host_programs import open_converted_program
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.contracts.plan import DelegationPlan, ReasonCode
from lowerdeck.runtime.native import missing_operators
from lowerdeck.steps.convert import convert
from lowerdeck.steps.partition import partition
from tests.backends.neutron.steps import build, neutron, quantized
from tests.conftest import Lowered

TARGET = "neutron_imxrt700"


@pytest.fixture(scope="module")
def planned(lowered: Callable[[str], Lowered]) -> Callable[..., DelegationPlan]:
    """(options) -> plan of the small network."""
    return lambda **options: partition(lowered(TARGET).quantized(), neutron(**options)).plan


def on_cpu(plan: DelegationPlan) -> set[str]:
    """Nodes that compute and are not delegated."""
    return {node.name for node in plan.nodes if node.compute and node.partition is None}


def test_an_operator_stays_on_the_cpu_and_its_namesakes_do_not(
    lowered: Callable[[str], Lowered], tmp_path: Path
) -> None:
    build, backend = lowered(TARGET), neutron(operators_not_to_delegate=["aten::add"])
    partitioned = partition(build.quantized(), backend)
    plan = partitioned.plan
    assert on_cpu(plan) == {"aten_add_tensor"}
    assert "aten_addmm_default" in {node.name for node in plan.nodes}
    add = next(node for node in plan.nodes if node.name == "aten_add_tensor")
    assert add.excluded_by == "operators_not_to_delegate: aten::add"
    assert add.reason is not None
    assert add.reason.code is ReasonCode.EXCLUDED
    assert add.reason.message == "excluded by operators_not_to_delegate: aten::add"
    assert plan.exclusions == ("operators_not_to_delegate: aten::add keeps 1 off: aten_add_tensor",)
    assert len(plan.partitions) == 2

    # The stored edge program knows nothing of the exclusion: convert finds the same nodes again.
    with chdir(tmp_path):
        write_edge_program(partitioned.program, partitioned.edge_config)
        converted = convert(read_edge_program(), plan, backend, tmp_path / "work")
        write_converted(converted, backend.converter())
        program = open_converted_program("reference")
        assert len(converted.partitions) == 2
        assert "aten::add.out" in converted.operators
        quantized = build.quantized().module()
        lsb = output_lsb(build.quantized())
        for sample in build.samples:
            (found,) = program(*sample)
            assert (found - quantized(*sample)).abs().max() <= 2.01 * lsb


def output_lsb(program: torch.export.ExportedProgram) -> float:
    """One step of the quantization of the program's output."""
    (output,) = program.graph.output_node().args[0]
    assert "dequantize_per_tensor" in str(output.target)
    return float(output.args[1])


def test_a_module_stays_on_the_cpu_with_everything_in_it(planned: Callable[..., DelegationPlan]) -> None:
    plan = planned(modules_not_to_delegate=["body.*"])
    assert {node.module for node in plan.nodes if node.compute and node.partition is None} == {"body.0", "body.2"}
    assert on_cpu(plan) == {"aten_convolution_default_1", "aten_relu_default_1"}
    around = [node.reason for node in plan.nodes if not node.compute and node.module == "body.0"]
    excluded = ("aten_convolution_default_1", "aten_relu_default_1")
    assert {(reason.code, reason.node, reason.message) for reason in around if reason is not None} == {
        ("excluded", name, f"in one quantize/dequantize cluster with {name}, which is excluded") for name in excluded
    }


def test_nodes_stay_on_the_cpu_by_name(planned: Callable[..., DelegationPlan]) -> None:
    assert on_cpu(planned(nodes_not_to_delegate=["*relu*_1"])) == {"aten_relu_default_1"}


def test_operators_are_known_by_what_they_were_decomposed_into(planned: Callable[..., DelegationPlan]) -> None:
    plan = planned(operators_not_to_delegate=["aten::linear"])
    assert on_cpu(plan) == {"aten_permute_copy_default", "aten_addmm_default"}


def test_a_pattern_that_names_nothing_stops_the_build(planned: Callable[..., DelegationPlan]) -> None:
    with pytest.raises(LowerdeckError, match=r"(?s)target\.options\.operators_not_to_delegate: 'aten::ad'.*aten\.add"):
        planned(operators_not_to_delegate=["aten::ad"])


class KeptWhole(nn.Module):
    """Hard swish and PReLU, which the NPU takes whole and ExecuTorch's CPU kernels lack."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(8, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 8, 3, padding=1)
        self.activation = nn.PReLU(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.hardswish(self.first(x))
        result: torch.Tensor = self.activation(self.second(x))
        return result


@pytest.mark.slow
def test_an_operator_that_the_cpu_has_no_kernel_for_is_decomposed_when_it_stays_there(tmp_path: Path) -> None:
    torch.manual_seed(0)
    program = quantized(KeptWhole(), [1, 8, 8, 16])
    whole = build(program, tmp_path / "whole")
    assert on_cpu(whole.plan) == set()
    options = {"operators_not_to_delegate": ["aten::hardswish"], "modules_not_to_delegate": ["activation"]}
    parts = build(program, tmp_path / "parts", **options)
    assert on_cpu(parts.plan) == {"aten_hardswish_default", "aten_prelu_default"}
    assert {"aten::clamp.out", "aten::where.self_out"} <= set(parts.converted.operators)
    assert missing_operators(parts.converted.operators) == []
    assert missing_operators(["aten::hardswish.out"]) == ["aten::hardswish.out"]
    with chdir(tmp_path):
        write_converted(parts.converted, neutron().converter())
        x = torch.randn(1, 8, 8, 16)
        (found,) = open_converted_program("reference")(x)
    assert (found - program.module()(x)).abs().max() <= 2.01 * output_lsb(program)


def test_a_program_may_end_in_a_float_operator(tmp_path: Path) -> None:
    """NXP's inference of formats asks the output of such a program for a value that it does not have."""
    torch.manual_seed(0)
    program = quantized(KeptWhole(), [1, 8, 8, 16], keep_float=("activation",))
    built = build(program, tmp_path)
    assert on_cpu(built.plan) == {"aten_view_copy_default", "aten_gt_scalar", "aten_mul_tensor", "aten_where_self"}
    assert missing_operators(built.converted.operators) == []
    with chdir(tmp_path):
        write_converted(built.converted, neutron().converter())
        x = torch.randn(1, 8, 8, 16)
        (found,) = open_converted_program("reference")(x)
    assert (found - program.module()(x)).abs().max() < 0.02
