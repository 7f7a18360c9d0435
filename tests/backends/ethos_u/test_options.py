"""Ethos-U's options through the steps: what each one changes in plan, program, twin, payload and metrics."""

from __future__ import annotations

import csv
import dataclasses
import inspect
import json
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest
import yaml

from lowerdeck import backends
from lowerdeck.artifacts import paths
from lowerdeck.artifacts.conversion import write_converted
from lowerdeck.artifacts.files import read_json, sha256
from lowerdeck.backends.ethos_u import options as ethos_u
from lowerdeck.backends.ethos_u.backend import EthosU
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.contracts.plan import ReasonCode
from lowerdeck.steps.convert import Converted, convert
from lowerdeck.steps.partition import replan
from tests.backends.ethos_u.lowering import U55, U85, converted, planned, with_options
from tests.conftest import Lowered
from tests.marks import quick_first
from tests.project import REPOSITORY


class TestTheInstalledClasses:
    """What ExecuTorch offers is an option here, or named as what is none."""

    def test_the_compile_spec(self) -> None:
        from executorch.backends.arm.ethosu import EthosUCompileSpec

        ours = {
            "target": "device.accelerator",
            "system_config": "options.system_config",
            "memory_mode": "options.memory_mode",
            "extra_flags": "options.extra_flags",
            "config_ini": "options.vela_config",
            "external_block_placements": "options.external_block_placements",
            "set_pass_pipeline_config": "device.pass_pipeline",
            "dump_debug_info": "options.debug_info",
            "dump_intermediate_artifacts_to": None,  # always kept
        }
        arguments = set(inspect.signature(EthosUCompileSpec).parameters)
        setters = {name for name, _ in inspect.getmembers(EthosUCompileSpec, callable) if not name.startswith("_")}
        assert arguments | (setters - {"DebugMode"}) == set(ours)
        fields = {f"{part}.{field.name}" for part in ("device", "options") for field in _fields(part)}
        assert {key for key in ours.values() if key is not None} <= fields

    def test_the_pass_pipeline(self) -> None:
        from executorch.backends.arm.common import pipeline_config as installed

        def names(schema: type) -> set[str]:
            return {field.name for field in dataclasses.fields(schema)}

        without_effect = {"leaky_relu", "sdpa_safe_softmax_guard"}
        assert names(installed.ArmPassPipelineConfig) == names(ethos_u.PassPipeline) | without_effect
        assert without_effect <= set(EthosU.unsupported_options)
        assert names(installed.QuantizeInfConfig) == names(ethos_u.QuantizeInf)

    def test_the_partitioner(self) -> None:
        from executorch.backends.arm.ethosu import EthosUPartitioner

        assert set(inspect.signature(EthosUPartitioner).parameters) == {"compile_spec", "additional_checks"}
        registering = {name for name in dir(EthosUPartitioner) if name.startswith(("register_", "set_"))}
        assert registering == {"register_custom_partition_op"}

    def test_the_block_placements(self) -> None:
        from executorch.backends.arm.ethosu import VelaExternalBlockPlacements

        theirs = [field.name for field in dataclasses.fields(VelaExternalBlockPlacements)]
        assert [field.name for field in dataclasses.fields(ethos_u.ExternalBlocks)] == theirs


def _fields(part: str) -> tuple[Any, ...]:
    return dataclasses.fields(getattr(EthosU, f"{part}_type"))


@pytest.mark.parametrize(
    "target", quick_first(sorted(path.stem for path in (REPOSITORY / "conf/target").glob("ethos_u*.yaml")))
)
def test_every_target_compiles(lowered: Callable[[str], Lowered], tmp_path: Path, target: str) -> None:
    chosen = yaml.safe_load((REPOSITORY / "conf/target" / f"{target}.yaml").read_text())
    build = lowered(U85 if target.startswith("ethos_u85") else U55)
    backend = backends.create("ethos_u", device=chosen["device"], options=chosen["options"])
    compiled = convert(build.edge(), build.plan, backend, tmp_path)
    (summary,) = csv.DictReader(_report(compiled, "vela_summary_").splitlines())
    name = chosen["device"]["accelerator"].title().replace("-", "_")
    assert summary["accelerator_configuration"] == name
    assert summary["memory_mode"] == chosen["options"]["memory_mode"]
    assert (compiled.program == build.converted.program) == (target in (U55, U85))


def _report(compiled: Converted, prefix: str) -> str:
    (content,) = [text for name, text in compiled.partitions[0].reports.items() if name.startswith(prefix)]
    return content.decode()


def test_flags_reach_vela_and_the_program(lowered: Callable[[str], Lowered], tmp_path: Path) -> None:
    small = converted(lowered(U55), tmp_path, extra_flags=["--optimise=Size", "--verbose-performance"])
    fast = lowered(U55).converted
    assert small.partitions[0].payload != fast.partitions[0].payload
    assert small.estimates["sram_bytes"] < fast.estimates["sram_bytes"]
    assert "--optimise=Size --verbose-performance --accelerator-config" in small.program.decode(errors="replace")
    assert "vela_per-layer.csv" in small.partitions[0].reports


BOARD = """
[System_Config.Board]
core_clock=125e6
axi0_port=Sram
axi1_port=OffChipFlash
Sram_clock_scale=1.0
OffChipFlash_clock_scale=0.125
[Memory_Mode.Everywhere]
const_mem_area=Axi1
arena_mem_area=Axi0
cache_mem_area=Axi0
"""


@pytest.mark.slow
def test_a_vela_ini_of_ones_own(lowered: Callable[[str], Lowered], tmp_path: Path) -> None:
    def made(folder: str, text: str) -> Converted:
        (tmp_path / folder).mkdir()
        path = tmp_path / folder / "board.ini"
        path.write_text(text)
        names = {"vela_config": str(path), "system_config": "Board", "memory_mode": "Everywhere"}
        return converted(lowered(U55), tmp_path / folder / "work", **names)

    slow, elsewhere = made("here", BOARD), made("elsewhere", BOARD)
    fast = made("fast", BOARD.replace("125e6", "1e9"))
    for compiled, clock_hz in ((slow, 125e6), (fast, 1e9)):
        (summary,) = csv.DictReader(_report(compiled, "vela_summary_Board").splitlines())
        assert float(summary["core_clock"]) == clock_hz
        time_ms = compiled.estimates["inference_time_ms"]
        assert time_ms == 1e3 * compiled.estimates["total_cycles"] / clock_hz
        assert time_ms == pytest.approx(1e3 * float(summary["inference_time"]), rel=1e-3)
    assert fast.estimates["inference_time_ms"] < slow.estimates["inference_time_ms"]
    # The `.pte` names the file by what it holds, and not by where it lies.
    assert elsewhere.program == slow.program != fast.program
    assert str(tmp_path).encode() not in slow.program


@pytest.mark.slow
def test_blocks_beside_the_program(lowered: Callable[[str], Lowered], tmp_path: Path) -> None:
    build = lowered(U55)
    placements = {"weight_data": "weights", "cmd_data": "commands"}
    compiled = converted(build, tmp_path, external_block_placements=placements)
    assert set(compiled.data_files) == {"weights.ptd", "commands.ptd"}
    assert len(compiled.program) < len(build.converted.program) - 1000
    inside = build.converted.partitions[0].payload
    command_stream = inside[inside.index(b"COP1") :][:64]
    assert command_stream in compiled.data_files["commands.ptd"]
    assert command_stream not in compiled.program
    with chdir(tmp_path):
        write_converted(compiled, build.converter)
        manifest = read_json(paths.MANIFEST)
        for name, content in compiled.data_files.items():
            stored = paths.DATA_FILES / name
            assert stored.read_bytes() == content
            assert manifest["data_files"][name] == {"sha256": sha256(stored), "bytes": len(content)}
        assert (paths.REPORTS / "partition_0" / "vela.log").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("target", quick_first([U55, U85]))
def test_debug_information_is_kept_and_the_program_stays(
    lowered: Callable[[str], Lowered], tmp_path: Path, target: str
) -> None:
    build = lowered(target)
    report = converted(build, tmp_path / "json", debug_info="JSON")
    events = json.loads(report.partitions[0].reports["debug.json"])
    # Each is traced to an operator of the quantized program, which a user can look up, and to its module.
    quantized = {node.name for node in build.quantized().graph.nodes}
    convolutions = [
        event["torch_info"] for event in events if event["aten_info"]["operator_name"].startswith("tosa.CONV")
    ]
    assert convolutions
    assert all(quantized & {source["name"] for source in info["node_trace"]} for info in convolutions)
    assert "conv2d" in {source["name"] for info in convolutions for source in info["node_trace"]}
    assert all(info["nn_module_stack"] and info["stack_trace"] for info in convolutions)
    assert "site-packages" not in report.partitions[0].reports["debug.json"].decode()
    inside = converted(build, tmp_path / "tosa", debug_info="TOSA")
    assert b"aten_info" in (inside.partitions[0].twin or b"")
    assert b"site-packages" not in (inside.partitions[0].twin or b"")
    assert b"aten_info" not in (build.converted.partitions[0].twin or b"")
    assert report.program == inside.program == build.converted.program


@pytest.mark.parametrize("target", quick_first([U55, U85]))
def test_integers_at_the_io_boundary_leave_nothing_to_the_cpu(
    lowered: Callable[[str], Lowered], tmp_path: Path, target: str
) -> None:
    build = lowered(target)
    assert {name.partition(".")[0] for name in build.converted.operators} == {
        "quantized_decomposed::quantize_per_tensor",
        "quantized_decomposed::dequantize_per_tensor",
    }
    integers = converted(build, tmp_path, quantized_inputs=True, quantized_outputs=True)
    assert integers.operators == ()
    assert [tensor.dtype for tensor in (*integers.inputs, *integers.outputs)] == ["int8", "int8"]
    assert integers.partitions[0].payload == build.converted.partitions[0].payload


@pytest.mark.parametrize(
    ("option", "pattern", "operators"),
    [
        ("operators_not_to_delegate", "aten::add", {"aten.add.Tensor"}),
        ("nodes_not_to_delegate", "aten_add_*", {"aten.add.Tensor"}),
        # Only for the NPU a linear layer is one operator.
        ("modules_not_to_delegate", "head", {"aten.addmm.default", "aten.permute_copy.default"}),
    ],
)
def test_what_is_named_stays_off_the_npu(
    lowered: Callable[[str], Lowered], option: str, pattern: str, operators: set[str]
) -> None:
    plan = planned(lowered(U55), **{option: [pattern]})
    off = [node for node in plan.nodes if node.compute and node.partition is None]
    assert {node.operator for node in off} == operators
    assert {(node.reason.code, node.reason.message) for node in off if node.reason is not None} == {
        (ReasonCode.EXCLUDED, f"excluded by {option}: {pattern}")
    }
    assert plan.delegated_compute_nodes == lowered(U55).plan.delegated_compute_nodes - 1


def test_a_pattern_that_names_nothing(lowered: Callable[[str], Lowered]) -> None:
    with pytest.raises(LowerdeckError, match=r"target\.options\.modules_not_to_delegate: 'hed' names nothing"):
        planned(lowered(U55), modules_not_to_delegate=["hed"])


def test_an_excluded_operator_runs_on_the_cpu(lowered: Callable[[str], Lowered], tmp_path: Path) -> None:
    build = lowered(U55)
    backend = with_options(build, operators_not_to_delegate=["aten::add"])
    plan = replan(build.edge(), backend)
    split = convert(build.edge(), plan, backend, tmp_path)
    assert "aten::add.out" in split.operators
    assert len(split.partitions) == len(plan.partitions) == 2
