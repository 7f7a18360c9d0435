"""Whether a program fits into the memories of its target, and ExecuTorch's planning for several of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lowerdeck.contracts.errors import ConversionError
from lowerdeck.contracts.memories import Memory
from lowerdeck.evaluation.gates import failed_gates
from lowerdeck.firmware.memory_budget import MemoryBudget, Part, memory_budget
from lowerdeck.formats.pte import read_pte
from lowerdeck.runtime.loading import open_made_program
from lowerdeck.steps.convert import convert
from tests.conftest import Lowered


def memory(name: str, size: int, *holds: str, reserved: int = 0) -> Memory:
    return Memory(name=name, size_bytes=size, holds=list(holds), reserved_bytes=reserved)  # type: ignore[arg-type]


def part(what: str, use: Any, size: int) -> Part:
    return Part(what=what, use=use, size_bytes=size, origin="counted in the program")


PARTS = (
    part("planned memory 1", "planned", 600),
    part("scratch", "scratch", 300),
    part("method allocator", "method", 200),
    part("inputs", "inputs", 50),
    part("program", "program", 5000),
)


def places(budget: MemoryBudget) -> dict[str, tuple[str | None, bool, int]]:
    return {placed.part.what: (placed.memory, placed.spilled, placed.missing_bytes) for placed in budget.placed}


def test_parts_take_the_first_memory_with_room_and_spill_to_the_next() -> None:
    dtcm, sram = memory("dtcm", 1000, "planned", "scratch", "method", reserved=50), memory("sram", 400, "method")
    found = memory_budget(PARTS, [dtcm, sram, memory("flash", 5000, "program")])
    assert places(found) == {
        "planned memory 1": ("dtcm", False, 0),
        "scratch": ("dtcm", False, 0),
        "method allocator": ("sram", True, 0),
        "program": ("flash", False, 0),
    }, "inputs are left out where no memory holds copies of them"
    assert (found.shortfall_bytes, found.spilled_bytes, found.used_bytes("dtcm")) == (0, 200, 900)
    assert next(found.lines()) == "dtcm: 950 of 1,000 bytes (firmware 50, planned memory 1 600, scratch 300)"
    assert found.metrics()["memory_budget"].endswith(
        "[planned memory 1, scratch, method allocator, program counted in the program]"
    )


def test_what_misses_says_by_how_much_and_fails_the_gate() -> None:
    small = [memory("sram", 500, "planned", "method"), memory("flash", 6000, "program")]
    found = memory_budget(PARTS, small)
    assert places(found)["planned memory 1"] == (None, False, 100)
    assert places(found)["scratch"] == (None, False, 300)
    assert list(found.lines())[-2:] == [
        "planned memory 1 has no place: 600 bytes; sram lack 100",
        "scratch has no place: 300 bytes; no memory may hold it",
    ]
    metrics = {f"estimated_{name}": value for name, value in found.metrics().items()}
    failed = failed_gates({"max_estimated_memory_shortfall_bytes": 0.0}, metrics)
    assert "estimated_memory_shortfall_bytes is 400" in failed["max_estimated_memory_shortfall_bytes"]
    assert not failed_gates({"max_estimated_memory_shortfall_bytes": 400.0}, metrics)


def test_firmware_that_is_too_large_itself_leaves_no_room() -> None:
    found = memory_budget([PARTS[0]], [memory("sram", 100, "planned", reserved=150)])
    assert found.shortfall_bytes == 600


def test_arenas_of_banked_planning_have_their_own_memory() -> None:
    arenas = [part("planned memory 1", "planned", 0), part("planned memory 2", "planned", 100)]
    banks = [memory("dtcm", 1000, "planned"), memory("sram", 1000, "planned")]
    found = memory_budget(arenas, banks, banked=True)
    assert places(found) == {"planned memory 2": ("sram", True, 0)}
    assert places(memory_budget(arenas, banks)) == {"planned memory 2": ("dtcm", False, 0)}


@pytest.mark.slow
@pytest.mark.heavy
def test_executorch_plans_for_the_memories_of_the_target(lowered: Callable[[str], Lowered], tmp_path: Path) -> None:
    build = lowered("cortex_m55")

    def made(*banks: Memory) -> bytes:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        return convert(build.edge(), build.plan, build.backend(), folder, banks=banks).program

    whole = made()
    (_, needed) = next(method for method in read_pte(whole) if method.name == "forward").arena_bytes
    assert made(memory("all", needed, "planned")) == whole, "one bank that is large enough is the default"
    split = made(memory("dtcm", needed // 2, "planned"), memory("sram", needed, "planned", reserved=16))
    _, first, second = next(method for method in read_pte(split) if method.name == "forward").arena_bytes
    assert 0 < first <= needed // 2
    assert 0 < second <= needed - 16
    inputs = tuple(value.contiguous(memory_format=torch.channels_last) for value in build.samples[0])
    assert torch.equal(open_made_program(whole, {})(inputs)[0], open_made_program(split, {})(inputs)[0])
    with pytest.raises(ConversionError, match=r"do not fit into target.memories: No declared bank can hold"):
        made(memory("dtcm", 64, "planned"))
