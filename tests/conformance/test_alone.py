"""lowerdeck.conformance.alone: a partition alone computes what it computes in its program, and shares its twin."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lowerdeck.backends.neutron import twin as neutron_twin
from lowerdeck.conformance.alone import open_alone
from lowerdeck.conformance.partitions import boundary_values, shared_twins, twins_by_payload
from lowerdeck.contracts.conformance import ConformanceSettings
from lowerdeck.runtime.exact import tosa, tosa_twin
from lowerdeck.runtime.exact.twin import ExactTwin
from lowerdeck.runtime.loading import open_made_program, open_with_twins
from lowerdeck.steps.convert_conforming import convert_conforming
from tests.conftest import TARGETS, Lowered


@pytest.mark.parametrize("target", TARGETS)
def test_a_partition_alone_and_its_program_compute_what_they_compute_apart(
    target: str, lowered: Callable[[str], Lowered]
) -> None:
    build = lowered(target)
    (part,) = build.converted.replaced
    samples, twins = build.samples[:3], shared_twins(build.converted.partitions)
    values = boundary_values(build.edge().exported_program(), [part], samples)
    apart = open_made_program(build.converted.program, twins_by_payload(build.converted.partitions))
    alone = open_alone(part, twins)
    together = open_with_twins(build.converted.program, twins.opener("reference"))
    assert together.executor == apart.executor
    assert together.batch_executor() == apart.batch_executor()
    inputs = [[value[name] for name in part.sources] for value in values]
    (output,) = part.outputs
    for results in (alone.calls(inputs), [alone(*each) for each in inputs]):
        for (found,), value in zip(results, values, strict=True):
            assert torch.allclose(found.float(), value[output.name].float(), atol=1.01)
    for results in (together.calls(samples), [together(*each) for each in samples]):
        for (found,), sample in zip(results, samples, strict=True):
            assert torch.equal(found, apart(*sample)[0])


def test_litert_twins_are_opened_once_a_set_of_kernels_and_execute_no_input_twice(
    lowered: Callable[[str], Lowered], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two samples and one with the whole range by the optimized kernels, that one by the reference kernels."""
    opened, executed = list[str](), list[str]()
    open_interpreter, execute = neutron_twin._litert_interpreter, neutron_twin.NeutronTwin.__call__

    def opening(model: bytes, resolver: str, *arguments: Any, **options: Any) -> Any:
        opened.append(resolver)
        return open_interpreter(model, resolver, *arguments, **options)

    def executing(self: Any, arguments: Any) -> None:
        executed.append(self._resolver)
        execute(self, arguments)

    monkeypatch.setattr(neutron_twin, "_litert_interpreter", opening)
    monkeypatch.setattr(neutron_twin.NeutronTwin, "__call__", executing)
    build = lowered("neutron_imxrt700")
    found = convert_conforming(
        build.edge(), build.plan, build.backend(), build.samples, tmp_path, ConformanceSettings(), print
    )
    assert (found.unchecked, len(found.outputs)) == ((), 1)
    assert opened == ["optimized", "reference"]
    assert sorted(executed) == [*["optimized"] * 3, "reference"]  # both sets of kernels side by side


def test_a_tosa_graph_is_prepared_once_and_executes_no_input_twice(
    lowered: Callable[[str], Lowered], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared, executed = list[Any](), list[int]()
    prepare, execute = tosa.TosaProgram, ExactTwin.__call__

    def preparing(*arguments: Any) -> Any:
        prepared.append(arguments)
        return prepare(*arguments)

    def executing(self: Any, inputs: Any) -> Any:
        executed.append(len(inputs[0]))
        return execute(self, inputs)

    monkeypatch.setattr(tosa_twin, "TosaProgram", preparing)
    monkeypatch.setattr(ExactTwin, "__call__", executing)
    build = lowered("ethos_u55_128")
    found = convert_conforming(
        build.edge(), build.plan, build.backend(), build.samples, tmp_path, ConformanceSettings(), print
    )
    assert (found.unchecked, len(found.outputs)) == ((), 1)
    assert len(prepared) == 1
    assert executed == [3]
