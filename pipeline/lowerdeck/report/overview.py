"""What the first screen of a report says, as values: verdict, quality, memory, layers and ranges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lowerdeck.contracts.devices import OWN_TOOL, Provenance
from lowerdeck.contracts.memories import Memory
from lowerdeck.contracts.quantization import QuantizedTensor
from lowerdeck.evaluation import gates
from lowerdeck.evaluation.defects import defects
from lowerdeck.evaluation.intervals import HIGH, LOW
from lowerdeck.explain.causes import causes
from lowerdeck.explain.graph import PlanGraph
from lowerdeck.firmware.memory_budget import SHORTFALL, MemoryBudget
from lowerdeck.report import summary
from lowerdeck.report.build import Build

MAX_RANGES = 24
"""Most tensors whose ranges are drawn; those with least SQNR."""
_FITS = f"max_estimated_{SHORTFALL}"
"""The gate that decides whether a program fits."""


@dataclass(frozen=True, kw_only=True)
class Gate:
    """A bound with its margin."""

    name: str
    bound: float
    value: float | None
    """None if the metric was not measured."""
    passed: bool

    @property
    def margin(self) -> float | None:
        """How far the value is from the bound, as a share of the bound, positive if it passes."""
        if self.value is None or not self.bound:
            return None
        away = self.value - self.bound if self.name.startswith("min_") else self.bound - self.value
        return away / abs(self.bound)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Whether a build ships, why not, and what to do next."""

    ships: bool
    reasons: Sequence[str]
    """Why it does not ship; empty if it does."""
    notes: Sequence[str]
    """What else to know: e.g. that no gate was chosen."""
    gates: Sequence[Gate]
    command: str
    misfit: str = ""
    """Why the program may not fit into the target's memories, an estimate that no gate bounds; empty if it fits."""

    @property
    def text(self) -> str:
        """The verdict in words."""
        if not self.ships:
            return "Does not ship"
        return "Ships if it fits" if self.misfit else "Ships"


@dataclass(frozen=True, kw_only=True)
class QualityPoint:
    """The first metric of the task for one program."""

    program: str
    value: float
    interval: tuple[float, float] | None


@dataclass(frozen=True, kw_only=True)
class MemoryBar:
    """A memory, or a kind of memory, with the parts of the program in it."""

    name: str
    parts: Sequence[tuple[str, int]]
    """(what, bytes)."""
    size_bytes: int | None
    """Size of the board's memory; None if the target names none."""
    unknown: str = ""
    """What comes on top and is not known."""

    @property
    def used_bytes(self) -> int:
        """The sum of the parts."""
        return sum(size for _, size in self.parts)


@dataclass(frozen=True, kw_only=True)
class RangeRow:
    """The values of a quantized tensor within those that it can represent."""

    name: str
    representable: tuple[float, float]
    observed: tuple[float, float]
    histogram: Sequence[int]
    """Number of values in each of equal parts of the representable range."""
    clipped_share: float


@dataclass(frozen=True, kw_only=True)
class Overview:
    """The first screen of a report."""

    verdict: Verdict
    quality_name: str
    quality: Sequence[QualityPoint]
    is_share: bool
    """Whether the metric is a fraction, shown in percent."""
    memory: Sequence[MemoryBar] = field(default_factory=list)
    ranges: Sequence[RangeRow] = field(default_factory=list)


def overview(build: Build) -> Overview:
    """The first screen for `build`."""
    name = summary.primary_metric(build.metrics)
    return Overview(
        verdict=verdict(build),
        quality_name=name.replace("_", " "),
        quality=quality(build.metrics, name),
        is_share=summary.primary_is_share(build.metrics),
        memory=memory_bars(build),
        ranges=ranges(build.tensors),
    )


def verdict(build: Build) -> Verdict:
    """Gates and defects decide; a flavor that runs on the host only never ships."""
    chosen = gates.bounds(build.config.gates)
    found = [_gate(name, bound, build.metrics) for name, bound in sorted(chosen.items()) if bound is not None]
    failed = gates.failed_gates(chosen, build.metrics)
    caveat = build.manifest["converter"]["caveat"]
    reasons = [*failed.values(), *(f"it {defect}" for defect in defects(build.metrics)), *([caveat] if caveat else [])]
    notes = [] if build.loss is None else [str(build.loss)]
    notes += [] if found else ["no gate was chosen: `gates: release` in params.yaml checks accuracy and size"]
    misfit = "" if chosen[_FITS] is not None else _misfit(build.metrics)
    return Verdict(
        ships=not reasons,
        reasons=reasons,
        notes=[misfit, *notes] if misfit else notes,
        gates=found,
        command=_next_command(build, failed),
        misfit=misfit,
    )


def _misfit(metrics: Mapping[str, Any]) -> str:
    """How much of the program has no place on the board; empty if all has one, or if the target names no memories."""
    if not (missing := metrics.get(f"estimated_{SHORTFALL}")):
        return ""
    lack = f"the target's memories lack {missing:,} bytes ({Provenance.ESTIMATED.by(OWN_TOOL)})"
    return f"{lack}; `overrides: {{gates: {{{_FITS}: 0}}}}` refuses such a build"


def _next_command(build: Build, failed: Mapping[str, str]) -> str:
    """The command that helps most: record it, explain what stays on the CPU, or compare with other builds."""
    if build.lineage is None:
        return "dvc repro"
    on_cpu = any(node.compute and node.is_portable for node in build.plan.nodes)
    if not (failed or on_cpu):
        return "lowerdeck compare"
    can_try = any(cause.change.can_be_tried for cause in causes(PlanGraph(build.plan)))
    return "lowerdeck explain --try" if can_try else "lowerdeck explain"


def _gate(name: str, bound: float, metrics: Mapping[str, Any]) -> Gate:
    value = metrics.get(name.partition("_")[2])
    number = float(value) if summary.is_number(value) else None
    return Gate(name=name, bound=bound, value=number, passed=not gates.failed_gates({name: bound}, metrics))


def quality(metrics: Mapping[str, Any], name: str) -> list[QualityPoint]:
    """The first metric of the task for each program that was measured, float first, the device last."""
    points = []
    for program in (*summary.PROGRAMS, "device"):
        key = f"{program}_{name}"
        if summary.is_number(value := metrics.get(key)):
            low, high = metrics.get(key + LOW), metrics.get(key + HIGH)
            ends = (float(low), float(high)) if summary.is_number(low) and summary.is_number(high) else None
            points.append(QualityPoint(program=program, value=float(value), interval=ends))
    return points


def memory_bars(build: Build) -> list[MemoryBar]:
    """The board's memories with what the program puts there, or else RAM and flash of the program alone."""
    if build.memory_budget is not None:
        bars = [_board_memory(memory, build.memory_budget) for memory in build.memory_budget.memories]
        homeless = [placed.part for placed in build.memory_budget.placed if placed.memory is None]
        parts = [(part.what, part.size_bytes) for part in homeless]
        return [*bars, MemoryBar(name="no place", parts=parts, size_bytes=None)] if parts else bars
    manifest, program_bytes = build.manifest, int(build.metrics["program_bytes"])
    bars, memory = list[MemoryBar](), manifest.get("working_memory")
    if memory is not None:
        parts = [("planned memory", memory["planned_bytes"]), ("scratch", memory["scratch_bytes"] or 0)]
        parts.append(("method allocator", memory["method_allocator_bytes"]))
        unknown = " and ".join(memory["unknown"])
        bars.append(MemoryBar(name="RAM", parts=[part for part in parts if part[1]], size_bytes=None, unknown=unknown))
    payloads = sum(partition["payload_bytes"] for partition in manifest["partitions"])
    parts = [("partitions", payloads), ("graph and constants", program_bytes - payloads)]
    bars.append(MemoryBar(name="flash", parts=[part for part in parts if part[1] > 0], size_bytes=None))
    return bars


def _board_memory(memory: Memory, budget: MemoryBudget) -> MemoryBar:
    parts = [("firmware", memory.reserved_bytes)] if memory.reserved_bytes else []
    parts += [(placed.part.what, placed.part.size_bytes) for placed in budget.placed if placed.memory == memory.name]
    return MemoryBar(name=memory.name, parts=parts, size_bytes=memory.size_bytes)


def ranges(tensors: Sequence[QuantizedTensor]) -> list[RangeRow]:
    """The activations whose observed values use the representable range least, or leave it, most clipped first."""
    rows = []
    for tensor in {tensor.source: tensor for tensor in tensors}.values():
        ends = [end for pair in tensor.representable for end in pair]
        if tensor.observed is None or tensor.is_constant or not ends:
            continue
        rows.append(
            RangeRow(
                name=tensor.node or tensor.source,
                representable=(min(ends), max(ends)),
                observed=(tensor.observed.minimum, tensor.observed.maximum),
                histogram=tensor.observed.histogram,
                clipped_share=tensor.observed.clipped_share,
            )
        )
    return sorted(rows, key=lambda row: (-row.clipped_share, _use(row)))[:MAX_RANGES]


def _use(row: RangeRow) -> float:
    """The share of the representable range that was observed."""
    (low, high), (least, most) = row.representable, row.observed
    return (most - least) / (high - low) if high > low else 0.0
