"""lowerdeck.graph.node_values: values inside a program, as its module computes them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from lowerdeck.graph.node_values import NodeValues
from tests.conftest import TARGETS, Lowered


class Counting(nn.Module):
    """Writes a buffer, and uses a parameter and a constant."""

    calls: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([2.0, 3.0]))
        self.register_buffer("calls", torch.zeros(1))
        self.constant = torch.tensor([1.0, 10.0])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        return x * self.weight + self.constant + self.calls


def test_parameters_constants_and_buffers_have_their_values_and_calls_do_not_see_each_other() -> None:
    program = torch.export.export(Counting(), (torch.zeros(2),))
    output = program.graph.output_node().all_input_nodes[-1].name
    values = NodeValues(program, {"x", output})
    for _ in range(2):
        found = values([torch.ones(2)])
        assert found["x"].tolist() == [1.0, 1.0]
        assert found[output].tolist() == [4.0, 14.0]


def test_inputs_are_rounded_to_the_programs_dtypes() -> None:
    program = torch.export.export(nn.ReLU(), (torch.zeros(2, dtype=torch.float16),))
    (found,) = NodeValues(program, {program.graph.output_node().all_input_nodes[0].name})(
        [torch.full((2,), 1.0001)]
    ).values()
    assert (found.dtype, found.tolist()) == (torch.float16, [1.0, 1.0])


@pytest.mark.parametrize("target", TARGETS)
def test_an_edge_program_gives_what_its_module_returns(target: str, lowered: Callable[[str], Lowered]) -> None:
    build = lowered(target)
    for program in (build.quantized(), build.edge().exported_program()):
        (output,) = program.graph.output_node().all_input_nodes
        found = NodeValues(program, {output.name})(build.samples[0])[output.name]
        returned = program.module(check_guards=False)(*build.samples[0])
        assert torch.equal(found, returned[0] if isinstance(returned, (tuple, list)) else returned)
