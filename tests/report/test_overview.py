"""lowerdeck.report.overview: the verdict, and what is drawn beside it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import yaml

from lowerdeck.artifacts.conversion import LayerEstimate, read_layer_estimates
from lowerdeck.artifacts.files import write_json, write_text
from lowerdeck.contracts.memories import Memory
from lowerdeck.contracts.plan import PlannedNode, Reason, ReasonCode
from lowerdeck.firmware.memory_budget import Part, memory_budget
from lowerdeck.pages import report
from lowerdeck.provenance import lineage
from lowerdeck.report import summary
from lowerdeck.report.build import Build, read_build
from lowerdeck.report.markdown import as_markdown
from lowerdeck.report.overview import Overview, overview
from tests.handmade_build import LOSS, write_build


@pytest.fixture(autouse=True)
def _in_new_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def made(**options: Any) -> Overview:
    config = write_build(**options)
    write_json(Path("build/track/lineage.json"), lineage.trace(config))
    return overview(read_build())


def test_gates_decide_with_their_margins() -> None:
    found = made(
        flavor={"name": "sdk"}, gates={"name": "strict", "min_quantized_accuracy": 0.5, "max_program_bytes": 1024}
    )
    assert not found.verdict.ships
    assert found.verdict.reasons == ["gates.max_program_bytes: program_bytes is 2048, more than the bound 1024"]
    margins = {gate.name: (gate.passed, gate.margin) for gate in found.verdict.gates}
    assert margins == {"max_program_bytes": (False, -1.0), "min_quantized_accuracy": (True, 0.5)}
    assert found.verdict.command == "lowerdeck explain"


def test_a_build_that_passes_ships_and_says_that_no_gate_was_chosen() -> None:
    found = made(flavor={"name": "sdk"})
    assert found.verdict.ships
    assert "no gate was chosen" in found.verdict.notes[0]
    # A node stays on the CPU, and the tool cannot change it.
    assert overview(read_build()).verdict.command == "lowerdeck explain"


def test_what_quantize_found_lost_stands_beside_the_verdict_with_what_may_help() -> None:
    """It was printed by the stage alone: a build of yesterday, or out of DVC's cache, said nothing."""
    found = made(flavor={"name": "sdk"}, loss=LOSS)
    assert found.verdict.ships
    assert "far from the float one: 3.2 dB" in found.verdict.notes[0]
    assert "conv2d (aten.conv2d.default, features.0): 4.0 dB" in found.verdict.notes[0]
    assert "try quantization.keep_float: [features.0]" in found.verdict.notes[0]


def test_a_change_that_can_be_tried_is_the_next_thing_to_do() -> None:
    config = write_build(flavor={"name": "sdk"})
    assert config is not None
    built = read_build()
    hardswish = PlannedNode(
        name="hardswish",
        operator="aten.hardswish.default",
        compute=True,
        partition=None,
        module="body",
        reason=Reason(code=ReasonCode.NO_CONVERTER, message="no converter"),
    )
    plan = dataclasses.replace(built.plan, nodes=(*built.plan.nodes, hardswish))
    tracked = dataclasses.replace(built, plan=plan, lineage={"build_key": "a" * 64})
    assert overview(tracked).verdict.command == "lowerdeck explain --try"


def test_a_flavor_of_the_host_and_a_defect_never_ship() -> None:
    found = made(metrics={"mismatches": 1, "mismatch_errors": "conv is off"})
    assert not found.verdict.ships
    assert "runs on the host only" in found.verdict.reasons[-1]
    assert any("conv is off" in reason for reason in found.verdict.reasons)


def test_a_metric_that_was_not_measured_fails_its_gate_without_a_margin() -> None:
    found = made(gates={"name": "strict", "min_delegated_accuracy": 0.5})
    (gate,) = found.verdict.gates
    assert (gate.passed, gate.value, gate.margin) == (False, None, None)


def test_quality_goes_from_program_to_program() -> None:
    found = made(metrics={"delegated_accuracy": 0.75, "delegated_accuracy_low": 0.3, "delegated_accuracy_high": 0.95})
    assert [(point.program, point.value) for point in found.quality] == [
        ("float", 1.0), ("quantized", 0.75), ("delegated", 0.75),
    ]  # fmt: skip
    assert found.quality[2].interval == (0.3, 0.95)
    assert found.is_share
    tasks = {"primary_metric": "mae", "task_metrics.mae": "min", "float_mae": 3.0, "quantized_mae": 4.0}
    assert not made(metrics=tasks).is_share


def test_a_board_with_memories_is_drawn_against_their_sizes() -> None:
    config = write_build()
    assert config is not None
    built = read_build()
    memories = [Memory(name="sram", size_bytes=4096, holds=["planned"], reserved_bytes=100),
                Memory(name="flash", size_bytes=8192, holds=["program"])]  # fmt: skip
    parts = [Part(what="planned memory 1", use="planned", size_bytes=1000, origin="x"),
             Part(what="program", use="program", size_bytes=2048, origin="x")]  # fmt: skip
    values = {name: getattr(built, name) for name in Build.__dataclass_fields__}
    bars = overview(Build(**values | {"memory_budget": memory_budget(parts, memories)})).memory
    assert [(bar.name, bar.used_bytes, bar.size_bytes) for bar in bars] == [("sram", 1100, 4096), ("flash", 2048, 8192)]
    assert [bar.name for bar in overview(built).memory] == ["flash"]  # nothing is known of its working memory


def test_a_program_without_room_on_its_board_is_not_drawn_as_if_it_fitted() -> None:
    """The verdict was a green "Ships", and the program was in none of the bars."""
    missing = {"estimated_memory_shortfall_bytes": 48984}
    found = made(flavor={"name": "sdk"}, metrics=missing)
    assert found.verdict.text == "Ships if it fits"
    assert "lack 48,984 bytes" in found.verdict.notes[0]
    advice = yaml.safe_load(found.verdict.notes[0].split("`")[1])  # params.yaml takes a set's name as `gates:`
    assert advice == {"overrides": {"gates": {"max_estimated_memory_shortfall_bytes": 0}}}
    built = read_build()
    page = report.render(built)
    assert "Ships if it fits" in page
    assert "verdict ships" not in page
    assert as_markdown(built).startswith("### tiny on neutron\\_imxrt700: ships if it fits\n")
    (row,) = [text for what, text in summary.rows(built.config, built.metrics, built.manifest) if "shortfall" in what]
    assert row == "48,984 bytes (47.8 KiB) (estimated by lowerdeck)"
    parts = [Part(what="planned memory 1", use="planned", size_bytes=1000, origin="x"),
             Part(what="program", use="program", size_bytes=2048, origin="x")]  # fmt: skip
    budget = memory_budget(parts, [Memory(name="sram", size_bytes=2000, holds=["planned", "program"])])
    bars = overview(dataclasses.replace(built, memory_budget=budget)).memory
    assert [(bar.name, bar.parts, bar.size_bytes) for bar in bars] == [
        ("sram", [("planned memory 1", 1000)], 2000), ("no place", [("program", 2048)], None),
    ]  # fmt: skip


@pytest.mark.parametrize(("bound", "text"), [(0, "Does not ship"), (50_000, "Ships")])
def test_the_gate_decides_whether_a_program_fits(bound: int, text: str) -> None:
    missing = {"estimated_memory_shortfall_bytes": 48984}
    gate = {"name": "board", "max_estimated_memory_shortfall_bytes": bound}
    found = made(flavor={"name": "sdk"}, metrics=missing, gates=gate).verdict
    assert (found.text, found.notes) == (text, [])


def test_ranges_are_those_of_activations_most_clipped_first() -> None:
    (row,) = made().ranges
    assert (row.name, row.representable, row.observed) == ("conv2d", (0.0, 127.5), (-3.0, 130.0))
    assert row.histogram == (10, 300, 90, 0)
    assert row.clipped_share == 0.025


def test_the_compilers_table_of_layers_is_read() -> None:
    write_build()
    assert read_layer_estimates() == []
    table = "Name,NNG Operator,Op Cycles,Staging Usage\nconv,Conv2D,1200.0,4096\n,Pool,1,1\n"
    write_text(Path("build/convert/reports/partition_0/vela_per-layer.csv"), table)
    assert read_build().profile == [LayerEstimate(name="conv", cycles=1200, sram_bytes=4096)]
