"""lowerdeck.steps.convert: the program is the planned one, and converters that fail say so."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lowerdeck.backends.ethos_u.backend import EthosU
from lowerdeck.backends.neutron.backend import Neutron
from lowerdeck.contracts.backends import Backend
from lowerdeck.contracts.errors import ConversionError, LowerdeckError, PartitionCompilationError
from lowerdeck.contracts.lowering import CompiledPartition
from lowerdeck.steps.convert import Converted, convert
from tests.conftest import TARGETS, Lowered


@pytest.mark.parametrize("target", TARGETS)
def test_the_program_says_what_it_needs(lowered: Callable[[str], Lowered], target: str) -> None:
    build = lowered(target)
    delegate = {"ethos_u": "EthosUBackend", "neutron": "NeutronBackend", "xnnpack": "XnnpackBackend"}
    assert build.converted.delegates == (delegate[build.target["backend"]],)
    assert build.converted.planned_memory_bytes > 0
    assert build.converted.program[4:6] == b"ET"  # ExecuTorch's file identifier
    assert list(build.converted.operators) == sorted(set(build.converted.operators))


@pytest.mark.parametrize("target", ["neutron_imxrt700", "xnnpack_cpu"])
def test_another_decision_than_the_planned_one_is_refused(
    lowered: Callable[[str], Lowered], tmp_path: Path, target: str
) -> None:
    build = lowered(target)
    node = next(node for node in build.plan.nodes if node.compute)
    nodes = tuple(dataclasses.replace(each, partition=None) if each is node else each for each in build.plan.nodes)
    with pytest.raises(LowerdeckError) as caught:
        convert(build.edge(), dataclasses.replace(build.plan, nodes=nodes), build.backend(), tmp_path)
    assert "partitioned the program differently than in the stage partition" in str(caught.value)
    assert node.name in str(caught.value)
    assert "`dvc repro -f partition`" in str(caught.value)


def test_other_groups_of_the_same_nodes_are_refused(lowered: Callable[[str], Lowered], tmp_path: Path) -> None:
    build = lowered("xnnpack_cpu")
    last = build.plan.nodes[-1]
    nodes = (*build.plan.nodes[:-1], dataclasses.replace(last, partition="another"))
    with pytest.raises(LowerdeckError, match="other groups"):
        convert(build.edge(), dataclasses.replace(build.plan, nodes=nodes), build.backend(), tmp_path)


def test_the_names_of_partitions_do_not_matter(lowered: Callable[[str], Lowered], tmp_path: Path) -> None:
    build = lowered("xnnpack_cpu")
    nodes = tuple(dataclasses.replace(node, partition=node.partition and "renamed") for node in build.plan.nodes)
    converted = convert(build.edge(), dataclasses.replace(build.plan, nodes=nodes), build.backend(), tmp_path)
    assert converted.program == build.converted.program


class WithBadFlag(EthosU):
    """Hands Vela a flag that it lacks."""

    def _compile_spec(self) -> Any:
        spec = super()._compile_spec()
        spec.compiler_flags.append("--no-such-flag")
        return spec


def changed(backend: Backend, kind: type[Backend], timeout_s: float = 60.0) -> Backend:
    flavor = dataclasses.replace(backend.flavor, timeout_s=timeout_s)
    return kind(device=backend.device, options=backend.options, flavor=flavor)


def test_a_failure_of_vela_names_its_folder_its_words_and_its_command(
    lowered: Callable[[str], Lowered], tmp_path: Path
) -> None:
    build = lowered("ethos_u55_128")
    with pytest.raises(PartitionCompilationError) as caught:
        convert(build.edge(), build.plan, changed(build.backend(), WithBadFlag), tmp_path)
    message = str(caught.value)
    assert caught.value.failure.startswith("Vela ended with exit code 2 on partition_0: ")
    assert caught.value.failure.endswith("error: unrecognized arguments: --no-such-flag")
    assert f"in {tmp_path / 'partition_0'}: " in message
    assert message.endswith("vela_worker.py job.json")
    assert (tmp_path / "partition_0" / "model.tosa").is_file()
    # The failure left nothing behind in ExecuTorch: the backend itself still converts.
    (tmp_path / "again").mkdir()
    assert convert(build.edge(), build.plan, build.backend(), tmp_path / "again").program == build.converted.program


def test_vela_has_a_time_limit(lowered: Callable[[str], Lowered], tmp_path: Path) -> None:
    build = lowered("ethos_u55_128")
    with pytest.raises(ConversionError) as caught:
        convert(build.edge(), build.plan, changed(build.backend(), EthosU, timeout_s=0.01), tmp_path)
    assert "did not finish partition_0 within 0.01 s (flavor.timeout_s)" in str(caught.value)
    assert str(tmp_path / "partition_0") in str(caught.value)


def test_the_neutron_converter_has_a_time_limit(lowered: Callable[[str], Lowered], tmp_path: Path) -> None:
    build = lowered("neutron_imxrt700")
    backend = changed(build.backend(), Neutron, timeout_s=0.01)
    with pytest.raises(ConversionError, match=r"time limit of 0\.01 s"):
        convert(build.edge(), build.plan, backend, tmp_path)


def test_estimates_of_partitions_are_summed_and_working_memory_is_shared() -> None:
    partitions = [
        CompiledPartition(payload=b"1", estimates={"npu_cycles": 10, "sram_bytes": 300, "off_chip_flash_bytes": 5}),
        CompiledPartition(payload=b"2", estimates={"npu_cycles": 7, "sram_bytes": 200, "off_chip_flash_bytes": 6}),
    ]
    converted = Converted(
        program=b"",
        delegates=(),
        operators=(),
        planned_memory_bytes=0,
        inputs=(),
        outputs=(),
        output_scales=(),
        partitions=partitions,
    )
    assert converted.estimates == {"npu_cycles": 17, "sram_bytes": 300, "off_chip_flash_bytes": 11}
