"""What Arm's partitioner keeps whole stays whole from partition to Vela, and what stays on the CPU does not."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks import networks
from benchmarks.in_turns import create
from lowerdeck.artifacts.conversion import converter_folder
from lowerdeck.artifacts.edge_programs import read_edge_program, write_edge_program
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.contracts.plan import ReasonCode
from lowerdeck.contracts.quantization import ModuleRule, QuantizationScheme
from lowerdeck.graph.nodes import operator_name
from lowerdeck.quantization.annotation import scheme_quantizer
from lowerdeck.steps.calibrate import calibrate
from lowerdeck.steps.convert import convert
from lowerdeck.steps.export import export
from lowerdeck.steps.partition import partition
from lowerdeck.steps.quantize import quantize
from tests.backends.ethos_u.lowering import U55, U85, with_options
from tests.conftest import Lowered
from tests.marks import quick_first

SHAPE = [1, 3, 8, 8]


class Swish(nn.Module):
    """A convolution, hard swish and a linear layer: float32 [1 x 3 x 8 x 8] -> [1 x 5]."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Hardswish(), nn.Flatten())
        self.head = nn.Linear(144, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.body(x))
        return scores


@pytest.fixture(scope="module")
def quantized(lowered: Callable[[str], Lowered]) -> Callable[..., torch.export.ExportedProgram]:
    """(target, scheme) -> Swish, quantized."""
    torch.manual_seed(0)
    network, samples = Swish().eval(), [(torch.randn(SHAPE),) for _ in range(2)]
    made: dict[tuple[str, str], torch.export.ExportedProgram] = {}

    def get(target: str, scheme: QuantizationScheme) -> torch.export.ExportedProgram:
        if (target, str(scheme)) not in made:
            backend = lowered(target).backend()
            observing, converting = scheme_quantizer(backend, scheme), scheme_quantizer(backend, scheme)
            assert observing is not None
            assert converting is not None
            state = calibrate(export(network, [SHAPE]), observing, samples, len(samples))
            made[target, str(scheme)] = quantize(export(network, [SHAPE]), converting, state)[0]
        return made[target, str(scheme)]

    return get


INT8 = QuantizationScheme(name="int8")


@pytest.mark.parametrize("target", quick_first([U55, U85]))
def test_operators_are_preserved_in_the_stored_program_too(
    lowered: Callable[[str], Lowered], quantized: Callable[..., Any], tmp_path: Path, target: str
) -> None:
    backend = lowered(target).backend()
    planned = partition(quantized(target, INT8), backend)
    assert [node.operator for node in planned.plan.nodes if node.compute] == [
        "aten.convolution.default",
        "aten.hardswish.default",
        "aten.view_copy.default",
        "aten.linear.default",
    ]
    assert len(planned.plan.partitions) == 1
    with chdir(tmp_path):
        write_edge_program(planned.program, planned.edge_config)
        stored = read_edge_program()
        names = {operator_name(node) for node in stored.exported_program().graph.nodes if node.op == "call_function"}
        assert {"aten.hardswish.default", "aten.linear.default"} <= names
        with converter_folder() as workdir:
            converted = convert(stored, planned.plan, backend, workdir)
    assert converted.estimates["cpu_operators"] == 0
    assert len(converted.partitions) == 1


def test_what_stays_on_the_cpu_is_decomposed(
    lowered: Callable[[str], Lowered], quantized: Callable[..., Any], tmp_path: Path
) -> None:
    backend = with_options(lowered(U55), operators_not_to_delegate=["aten::hardswish"])
    planned = partition(quantized(U55, INT8), backend)
    off = {node.operator for node in planned.plan.nodes if node.compute and node.partition is None}
    assert "aten.hardswish.default" not in off
    assert "aten.clamp.default" in off
    with chdir(tmp_path):
        write_edge_program(planned.program, planned.edge_config)
        with converter_folder() as workdir:
            converted = convert(read_edge_program(), planned.plan, backend, workdir)
    from executorch.extension.pybindings import portable_lib

    assert set(converted.operators) <= set(portable_lib._get_operator_names())  # so that the CPU can execute them


def test_a_node_that_the_cpu_cannot_execute_is_refused(
    lowered: Callable[[str], Lowered], quantized: Callable[..., Any]
) -> None:
    backend = with_options(lowered(U55), nodes_not_to_delegate=["aten_hardswish_*"])
    with pytest.raises(LowerdeckError, match=r"(?s)aten\.hardswish\.default was preserved.*operators_not_to_delegate"):
        partition(quantized(U55, INT8), backend)


@pytest.mark.slow
def test_rules_by_module_and_type_decide_the_integers(
    lowered: Callable[[str], Lowered], quantized: Callable[..., Any]
) -> None:
    def integers(*rules: ModuleRule) -> set[torch.dtype]:
        program = quantized(U85, QuantizationScheme(name="int8", rules=rules))
        return {node.args[5] for node in program.graph.nodes if "quantize_per_tensor" in str(node.target)}

    assert torch.int16 not in integers()
    assert torch.int16 in integers(ModuleRule(types=("torch.nn.Linear",), scheme="int16x8"))
    float_head = QuantizationScheme(name="int8", rules=(ModuleRule(modules=("head",), scheme=None),))
    plan = partition(quantized(U85, float_head), lowered(U85).backend()).plan
    off = [node for node in plan.nodes if node.compute and node.partition is None]
    assert {node.module for node in off} == {"head"}
    assert ReasonCode.NOT_QUANTIZED in {node.reason.code for node in off if node.reason is not None}


class Saturated(nn.Module):
    """Scaled pixels through a layer, and whether any of them is bright: uint8 [1 x 3 x 8 x 8]."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 4, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.layer(x.float() / 255), (x > 128).any()


def test_bytes_without_a_sign_keep_nothing_else_off_the_npu() -> None:
    """Arm's partitioner refuses a partition as a whole in which something computes with them."""
    drawn = [(torch.randint(0, 256, (1, 3, 8, 8), dtype=torch.uint8),) for _ in range(8)]
    verdict, detail = networks.lowered(Saturated().eval(), drawn, create("ethos_u55_128"))
    assert verdict == "right", detail
    assert detail.startswith("3 of 7 operators delegated")  # 1 / 255, the product and the layer
