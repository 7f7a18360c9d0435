"""Whether a program fits into the memories of its target, before it is flashed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lowerdeck.contracts.memories import Memory, MemoryUse

SHORTFALL, SPILLED, SUMMARY = "memory_shortfall_bytes", "memory_spilled_bytes", "memory_budget"
"""Metrics; the first two are estimates, because the method allocator is one."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """Something that needs a place, undivided."""

    what: str
    """For people, e.g. `planned memory 1`."""
    use: MemoryUse
    size_bytes: int
    origin: str
    """Where the size comes from, e.g. `counted in the program`."""


@dataclass(frozen=True, kw_only=True)
class PlacedPart:
    """A part and its place."""

    part: Part
    memory: str | None
    """None where no memory has room."""
    spilled: bool = False
    """Whether a memory before it, which may hold it, too, was full."""
    missing_bytes: int = 0
    """By how much it misses the memory with most room."""


@dataclass(frozen=True, kw_only=True)
class MemoryBudget:
    """How a program fills the memories of its target."""

    memories: Sequence[Memory]
    placed: Sequence[PlacedPart] = field(default_factory=list)

    @property
    def shortfall_bytes(self) -> int:
        """Bytes that are missing; 0 where everything has a place."""
        return sum(placed.missing_bytes for placed in self.placed)

    @property
    def spilled_bytes(self) -> int:
        """Bytes outside of the first memory that may hold them."""
        return sum(placed.part.size_bytes for placed in self.placed if placed.spilled)

    def used_bytes(self, memory: str) -> int:
        """Bytes of the parts in a memory."""
        return sum(placed.part.size_bytes for placed in self.placed if placed.memory == memory)

    def lines(self) -> Iterator[str]:
        """The table, one line for each memory, and one for each part without a place."""
        for memory in self.memories:
            names = [
                f"{placed.part.what} {placed.part.size_bytes:,}{' (spilled)' if placed.spilled else ''}"
                for placed in self.placed
                if placed.memory == memory.name
            ]
            used = self.used_bytes(memory.name)
            reserved = [f"firmware {memory.reserved_bytes:,}"] if memory.reserved_bytes else []
            of = f"{used + memory.reserved_bytes:,} of {memory.size_bytes:,} bytes"
            yield f"{memory.name}: {of} ({', '.join([*reserved, *names]) or 'empty'})"
        for placed in self.placed:
            if placed.memory is None:
                holds = [memory.name for memory in self.memories if placed.part.use in memory.holds]
                where = f"{' and '.join(holds)} lack {placed.missing_bytes:,}" if holds else "no memory may hold it"
                yield f"{placed.part.what} has no place: {placed.part.size_bytes:,} bytes; {where}"

    def summary(self) -> str:
        """One line for metrics and tables, with the origin of every size."""
        origins: dict[str, list[str]] = {}
        for placed in self.placed:
            origins.setdefault(placed.part.origin, []).append(placed.part.what)
        said = "; ".join(f"{', '.join(parts)} {origin}" for origin, parts in origins.items())
        return f"{'. '.join(self.lines())}. [{said}]"

    def metrics(self) -> dict[str, Any]:
        """For metrics.json, without their prefix `estimated_`."""
        return {SHORTFALL: self.shortfall_bytes, SPILLED: self.spilled_bytes, SUMMARY: self.summary()}


def parts_of(metadata: Mapping[str, Any]) -> list[Part]:
    """The parts of a program, from the bundle's metadata.json."""
    memory, counted = metadata["memory"], "counted in the program"
    compiler = f"estimated by {metadata['converter']['name']}"
    parts = [
        Part(what=f"planned memory {arena}", use="planned", size_bytes=size, origin=counted)
        for arena, size in memory["planned_bytes"].items()
    ]
    if scratch := memory["scratch_bytes"]["largest"]:
        parts.append(Part(what="scratch", use="scratch", size_bytes=scratch, origin=compiler))
    method = memory["method_allocator_bytes"]["32_bit"]
    inputs = metadata["requirements"]["input_bytes"]
    return [
        *parts,
        Part(what="method allocator", use="method", size_bytes=method, origin="estimated by lowerdeck"),
        Part(what="inputs", use="inputs", size_bytes=inputs, origin=counted),
        Part(what="program", use="program", size_bytes=metadata["program"]["bytes"], origin=counted),
    ]


def memory_budget(parts: Sequence[Part], memories: Sequence[Memory], *, banked: bool = False) -> MemoryBudget:
    """Give every part the first memory that may hold it and has room.

    Args:
        parts: In the order in which they choose.
        memories: In order of preference.
        banked: Whether arena number N of planned memory was planned for the Nth memory that holds `planned`, so that it
            has no choice.
    """
    free = {memory.name: memory.room_bytes for memory in memories}
    banks, placed, arena = [memory.name for memory in memories if "planned" in memory.holds], list[PlacedPart](), 0
    for part in parts:
        allowed = [memory.name for memory in memories if part.use in memory.holds]
        if part.use == "planned" and banked:
            first, allowed, arena = banks[:1], banks[arena : arena + 1], arena + 1
        else:
            first = allowed[:1]
        if not part.size_bytes or (part.use == "inputs" and not allowed):
            continue  # firmware that copies no inputs names no memory for them
        room = max((free[name] for name in allowed), default=0)
        memory = next((name for name in allowed if free[name] >= part.size_bytes), None)
        if memory is None:
            placed.append(PlacedPart(part=part, memory=None, missing_bytes=part.size_bytes - max(0, room)))
            continue
        free[memory] -= part.size_bytes
        placed.append(PlacedPart(part=part, memory=memory, spilled=[memory] != first))
    return MemoryBudget(memories=memories, placed=placed)
