"""lowerdeck.conformance.partitions: what partitions are compared with is computed beside their compiler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from lowerdeck.conformance.partitions import boundary_values, boundary_values_beside
from lowerdeck.graph import node_values
from tests.conftest import TARGETS, Lowered


@pytest.mark.parametrize("target", TARGETS)
def test_values_computed_beside_the_compiler_are_those_of_the_edge_program(
    target: str, lowered: Callable[[str], Lowered], monkeypatch: pytest.MonkeyPatch
) -> None:
    build = lowered(target)
    edge, parts, samples = build.edge().exported_program(), build.converted.replaced, build.samples[:2]
    expected = boundary_values(edge, parts, samples)
    prepared, prepare = list[Any](), node_values.NodeValues.__init__

    def preparing(*how: Any, **options: Any) -> None:
        prepared.append(how)
        prepare(*how, **options)

    monkeypatch.setattr(node_values.NodeValues, "__init__", preparing)
    planned = {node.name: node.partition for node in build.plan.nodes}
    for partition_of in (planned, dict.fromkeys(planned)):
        with boundary_values_beside(edge, partition_of, samples) as values_of:
            found = values_of(parts)
        for values, others in zip(found, expected, strict=True):
            assert values.keys() >= others.keys()
            assert all(torch.equal(values[name], others[name]) for name in others)
    assert len(prepared) == 3, "once where the parts are those of the plan, again where they are others"


class Counting(torch.nn.Module):
    calls: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        return x + self.calls


def test_samples_are_consecutive_calls_also_beside_the_compiler() -> None:
    program = torch.export.export(Counting(), (torch.zeros(1),), strict=True).run_decompositions({})
    with boundary_values_beside(program, {}, [(torch.zeros(1),)] * 3) as values_of:
        assert sorted(float(value) for values in values_of(()) for value in values.values()) == [1, 2, 3]


def test_a_failing_compiler_is_raised_as_it_is_and_so_is_a_sample_that_fails() -> None:
    program = torch.export.export(Counting(), (torch.zeros(1),), strict=True).run_decompositions({})
    with pytest.raises(OSError, match="disk"), boundary_values_beside(program, {}, [(torch.zeros(1),)]):
        raise OSError("disk")
    too_many = [(torch.zeros(1), torch.zeros(1))]
    with boundary_values_beside(program, {}, too_many) as values_of, pytest.raises(ValueError, match="zip"):
        values_of(())
