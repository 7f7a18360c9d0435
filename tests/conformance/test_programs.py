"""lowerdeck.conformance.programs: a fault of a backend's passes is found before anything is compiled."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks import networks
from benchmarks.in_turns import create
from lowerdeck.backends.neutron import sdk
from lowerdeck.backends.neutron.converter import REFERENCE
from lowerdeck.conformance.partitions import boundary_values
from lowerdeck.conformance.programs import edge_deviation, program_errors
from lowerdeck.contracts.conformance import ConformanceSettings, ErrorUnit, OutputError, PartitionConformance
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.runtime.floats import FloatProgram
from lowerdeck.runtime.loading import open_made_program
from lowerdeck.steps.partition import partition_conforming
from tests.backends.neutron.steps import neutron, quantized
from tests.conftest import TARGETS, Lowered
from tests.marks import quick_first


class Gate(nn.Module):
    """A sigmoid behind a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.gate = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(4 * self.gate(self.stem(x)))


class Classes(nn.Module):
    """The index of the largest of four channels, of which two are nearly equal at some pixel of any sample."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.scores = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 4, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scores = self.scores(torch.relu(self.stem(x)))
        return scores.argmax(1), scores


class BareGate(Gate):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(self.gate(self.stem(x)))


SHAPE = [1, 3, 8, 8]
SAMPLES: list[tuple[torch.Tensor, ...]] = [(3 * torch.randn(SHAPE, generator=torch.Generator().manual_seed(5)),)]


@pytest.fixture(scope="module")
def faulty() -> Any:
    """BareGate, quantized by NXP's quantizer as it is."""
    sdk.provide_sdk(REFERENCE)
    from executorch.backends.nxp.quantizer.neutron_quantizer import NeutronQuantizer

    from lowerdeck.backends.neutron import quantizer

    torch.manual_seed(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quantizer, "SeparatingQuantizer", NeutronQuantizer)
        return quantized(BareGate().eval(), SHAPE)


def partitioned(program: Any, **settings: Any) -> tuple[Any, list[str]]:
    said: list[str] = []
    made = partition_conforming(
        lambda: copy.deepcopy(program), neutron(), SAMPLES, ConformanceSettings(**settings), said.append
    )
    return made, said


def test_a_pass_that_clips_is_found_with_the_layer_and_the_ways_out(faulty: Any) -> None:
    with pytest.raises(LowerdeckError) as caught:
        partitioned(faulty)
    message = str(caught.value)
    assert message.startswith(
        "the backend's passes made a program that computes something else than the quantized model: "
    )
    assert "LSB" in message
    assert re.search(r"the first to deviate is \w+ \(quantized_decomposed\.quantize_per_tensor\.default, gate", message)
    assert "quantization.keep_float" in message
    assert "evaluation.conformance.on_mismatch: warn" in message


def test_it_may_be_accepted_and_is_shown(faulty: Any) -> None:
    made, (line,) = partitioned(faulty, on_mismatch="warn")
    assert "computes something else" in line
    assert [mismatch.partition(":")[0] for mismatch in made.plan.mismatches] == ["edge program"]
    assert made.plan.delegated_compute_nodes > 0


def test_the_corrected_quantizer_makes_programs_that_agree() -> None:
    torch.manual_seed(0)
    for network in (BareGate(), Gate()):
        _, said = partitioned(quantized(network.eval(), SHAPE))
        assert said == []


@pytest.mark.parametrize("target", TARGETS)
def test_programs_of_the_small_network_agree(target: str, lowered: Callable[[str], Lowered]) -> None:
    build = lowered(target)
    edge = build.edge().exported_program()
    assert edge_deviation(build.quantized(), edge, build.samples[:2]) is None
    twins = {part.payload: part.twin for part in build.converted.partitions if part.twin is not None}
    opened = open_made_program(build.converted.program, twins)
    program = FloatProgram(opened, build.converted.inputs, build.converted.outputs)
    samples = build.samples[:2]
    expected = boundary_values(edge, (), samples)
    (error,) = program_errors(program.calls, edge, samples, expected, build.converted.output_scales)
    assert error.excess <= 1


def test_what_rounding_explains_of_a_partition_it_explains_of_the_program(lowered: Callable[[str], Lowered]) -> None:
    """The edge program is not executed again for as much."""
    build = lowered("neutron_imxrt700")
    edge, samples, (step,) = build.edge().exported_program(), build.samples[:2], build.converted.output_scales
    assert step is not None
    expected = boundary_values(edge, (), samples)
    name = edge.graph.output_node().all_input_nodes[0].name

    def execute(_: object) -> list[tuple[torch.Tensor, ...]]:
        return [(values[name] + 20 * step,) for values in expected]

    (integers,) = edge.graph.output_node().all_input_nodes[0].all_input_nodes
    for output, explained in ((integers.name, 30.0), (integers.name, 15.0), ("another", 30.0)):
        bound = OutputError(
            output=output, max_error=0, mean_error=0, unit=ErrorUnit.LSB, bound=explained, mean_bound=explained
        )
        found = PartitionConformance(partition="tag0", depth=1, outputs=(bound,))
        (error,) = program_errors(execute, edge, samples, expected, [step], [found])
        assert (error.excess <= 1) == (bound.output == integers.name and explained > 20)
        if error.excess <= 1:
            assert (error.bound, error.mean_bound) == (30.0, 30.0)


@pytest.mark.parametrize("target", quick_first(["cortex_m55", "ethos_u85_256"]))
def test_indices_may_differ_where_a_step_decides_which_is_the_largest(target: str) -> None:
    torch.manual_seed(3)
    generator = torch.Generator().manual_seed(5)
    drawn = [(1.5 * torch.randn(1, 3, 16, 16, generator=generator),) for _ in range(12)]
    verdict, detail = networks.lowered(Classes().eval(), drawn, create(target))
    assert verdict == "right", detail
    assert "stays on the CPU" not in detail


def test_another_program_is_recognized(lowered: Callable[[str], Lowered]) -> None:
    build = lowered("xnnpack_cpu")
    edge = build.edge().exported_program()
    (name,) = [name for name in edge.state_dict if name.endswith("head.bias")] or [next(iter(edge.state_dict))]
    edge.state_dict[name] = edge.state_dict[name] + 100
    found = edge_deviation(build.quantized(), edge, build.samples[:1])
    assert found is not None
    assert found.output.excess > 1
