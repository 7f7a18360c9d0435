"""Figures as columns. A column holds figures of one kind by one author: other figures are not ranked with them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from lowerdeck.comparison.builds import ComparedBuild
from lowerdeck.evaluation.intervals import HIGH, LOW

Direction = Literal["max", "min"]


class Kind(StrEnum):
    """Where a figure comes from."""

    MEASURED = "measured on the host"
    COUNTED = "counted in the program"
    ESTIMATED = "estimated by the compiler"
    SIMULATED = "simulated"


_PREFIXES = {"estimated_": Kind.ESTIMATED, "simulated_": Kind.SIMULATED}
_MEASURED = re.compile(r"accuracy|agreement|sqnr|_drop$|_error_|exact_share|latency|output_lsb")
_MORE_IS_BETTER = re.compile(r"accuracy$|_agreement_with_|_share$|sqnr_db$|^delegated_compute_nodes$|per_s$")
_LESS_IS_BETTER = re.compile(
    r"^undelegated_|_bytes$|cycles$|_ms$|_drop$|_error_|^partitions$|crossings$|^transposes|cpu_op|cpu_cycles|energy"
)
_NOT_OF_THE_BUILD = frozenset(("num_samples", "num_layer_samples", "output_lsb"))
ALIASES = {
    "size": ("program_bytes",),
    "memory": ("planned_memory_bytes",),
    "time": ("estimated_inference_time_ms", "estimated_total_cycles"),
    "cycles": ("estimated_total_cycles", "estimated_npu_cycles"),
    "accuracy": ("delegated_accuracy", "quantized_accuracy", "float_accuracy"),
    "coverage": ("delegated_macs_share", "delegated_share"),
}
"""Short words for the first of several figures that any of the builds has."""
_FIRST = (
    "delegated_accuracy",
    "quantized_accuracy",
    "float_accuracy",
    "delegated_macs_share",
    "undelegated_macs",
    "delegated_share",
    "partitions",
    "crossing_bytes",
    "transposes_at_boundary",
    "program_bytes",
    "planned_memory_bytes",
    "estimated_inference_time_ms",
    "estimated_total_cycles",
    "estimated_npu_cycles",
    "estimated_sram_bytes",
    "estimated_flash_bytes",
    "estimated_dram_bytes",
)
"""Figures that tables begin with, in their order."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """A figure, and who it is from."""

    figure: str
    """Key of metrics.json."""
    kind: Kind
    author: str
    """The compiler that made an estimate; the evaluation samples of a measurement; empty for what is counted."""

    @property
    def direction(self) -> Direction | None:
        """Which values are better, None where neither are."""
        return direction_of(self.figure)

    @property
    def is_fraction(self) -> bool:
        """Whether values are shares, shown as percentages."""
        return bool(re.search(r"accuracy$|_share$|_agreement_with_\w+$|_drop$", self.figure))

    def value(self, build: ComparedBuild) -> float | None:
        """The figure of `build`, None where it has none of this author."""
        return build.figures.get(self.figure) if author_of(build, self.kind) == self.author else None

    def interval(self, build: ComparedBuild) -> tuple[float, float] | None:
        """The 95 % interval of the build's figure, None where it has none."""
        return build.interval(self.figure) if self.value(build) is not None else None


def kind_of(figure: str) -> Kind:
    """Which kind of figure a key of metrics.json names."""
    for prefix, kind in _PREFIXES.items():
        if figure.startswith(prefix):
            return kind
    return Kind.MEASURED if _MEASURED.search(figure) else Kind.COUNTED


def direction_of(figure: str) -> Direction | None:
    """Which values of a figure are better, None where neither are."""
    if _LESS_IS_BETTER.search(figure):
        return "min"
    return "max" if _MORE_IS_BETTER.search(figure) else None


def author_of(build: ComparedBuild, kind: Kind) -> str:
    """Who a figure of this kind is from."""
    if kind is Kind.COUNTED:
        return ""
    return build.samples if kind is Kind.MEASURED else build.compiler


def columns_of(builds: Sequence[ComparedBuild]) -> list[Column]:
    """All columns that any of `builds` has a value in, those first that are looked for first."""
    found = {
        Column(figure=figure, kind=kind_of(figure), author=author_of(build, kind_of(figure)))
        for build in builds
        for figure in build.figures
        if figure not in _NOT_OF_THE_BUILD and not figure.endswith((LOW, HIGH))
    }
    order = {figure: position for position, figure in enumerate(_FIRST)}
    return sorted(found, key=lambda column: (order.get(column.figure, len(order)), column.figure, column.author))


def resolved(name: str, columns: Iterable[Column]) -> list[Column]:
    """The columns of the figure that `name` names or is short for; empty where there are none."""
    columns = list(columns)
    for figure in (name, *ALIASES.get(name, ())):
        if found := [column for column in columns if column.figure == figure]:
            return found
    return []
