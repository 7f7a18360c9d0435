"""Metrics as columns. A column has one kind and one source, because others must not be ranked with it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from lowerdeck.comparison.builds import ComparedBuild
from lowerdeck.contracts.devices import OWN_ESTIMATES, OWN_TOOL
from lowerdeck.evaluation.intervals import HIGH, LOW
from lowerdeck.evaluation.metric_names import PRIMARY

Direction = Literal["max", "min"]


class Kind(StrEnum):
    """Where a metric comes from."""

    MEASURED = "measured on the host"
    COUNTED = "counted in the program"
    ESTIMATED = "estimated"
    SIMULATED = "simulated"
    ON_DEVICE = "measured on a device"
    EMULATED = "emulated (instructions real, time not)"


_OF_DEVICES = (Kind.ON_DEVICE, Kind.EMULATED, Kind.SIMULATED)
_BY_FIRST_WORD = {
    "measured": Kind.ON_DEVICE,
    "emulated": Kind.EMULATED,
    "simulated": Kind.SIMULATED,
}
"""How the metric `device_provenance` starts."""
_PREFIXES = {
    "estimated_": Kind.ESTIMATED,
    "simulated_": Kind.SIMULATED,
    "measured_": Kind.ON_DEVICE,
    "device_": Kind.ON_DEVICE,
    "emulated_": Kind.EMULATED,
}
_MEASURED = re.compile(
    r"accuracy|agreement|sqnr|cosine|_drop(_|$)|_error_|exact_share|latency|output_lsb|^classes\.|_threshold$"
)
_MORE_IS_BETTER = re.compile(
    r"accuracy$|_agreement_with_|_share$|sqnr_db$|cosine$|_iou$|_average_precision$|^delegated_compute_nodes$"
    r"|per_s$"
)
_LESS_IS_BETTER = re.compile(
    r"^undelegated_|^portable_|_bytes$|cycles$|_ms$|_drop(_|$)|_error_|_max_error$|^partitions$|crossings$|^transposes"
    r"|cpu_op|cpu_cycles|energy"
)
_NAMED_BY_THE_USER = ("outputs.", "classes.")
"""Metrics whose names begin so contain the name of an output or of a class, which may have any words."""
_NOT_OF_THE_BUILD = frozenset(("num_samples", "num_layer_samples", "num_device_samples", "output_lsb"))
ALIASES = {
    "size": ("program_bytes",),
    "ram": ("ram_bytes",),
    "memory": ("planned_memory_bytes",),
    "time": ("measured_latency_ms", "estimated_inference_time_ms", "estimated_total_cycles"),
    "cycles": ("estimated_total_cycles", "estimated_npu_cycles"),
    "accuracy": ("delegated_accuracy", "quantized_accuracy", "float_accuracy"),
    "quality": (
        *("delegated_accuracy", "quantized_accuracy", "float_accuracy", "delegated_miou", "delegated_map"),
        *("delegated_r2", "delegated_auc", "delegated_recall_at_1", "delegated_cosine", "quantized_cosine"),
    ),
    "coverage": ("accelerated_macs_share", "delegated_macs_share", "delegated_share"),
}
"""Alias -> metrics; it means the first one that any build has. `quality` is the first metric of the task, and one of
these where a record does not say which that is."""
_PROGRAMS = ("delegated", "quantized", "float")
_FIRST = (
    "delegated_accuracy",
    "quantized_accuracy",
    "float_accuracy",
    "accelerated_macs_share",
    "delegated_macs_share",
    "undelegated_macs",
    "delegated_share",
    "partitions",
    "crossing_bytes",
    "transposes_at_boundary",
    "program_bytes",
    "ram_bytes",
    "planned_memory_bytes",
    "estimated_inference_time_ms",
    "estimated_total_cycles",
    "estimated_npu_cycles",
    "estimated_sram_bytes",
    "estimated_flash_bytes",
    "estimated_dram_bytes",
)
"""The first metrics of tables, in order."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """A metric from one source."""

    metric: str
    """Key of metrics.json."""
    kind: Kind
    source: str
    """The compiler of an estimate, the evaluation samples of a measurement, the device; empty for counts."""
    described: str = ""
    """What a task says of its metric: `max` or `min`, and `share`; empty for other metrics."""
    is_primary: bool = field(default=False, compare=False)
    """Whether it is a program's value of the first metric of the build's task."""

    @property
    def direction(self) -> Direction | None:
        """Which values are better; None if neither."""
        better = self.described.partition(" ")[0]
        return "max" if better == "max" else "min" if better == "min" else direction_of(self.metric)

    @property
    def is_fraction(self) -> bool:
        """Whether values are shares, shown as percentages."""
        if self.described:
            return self.described.endswith("share")
        return bool(re.search(r"accuracy$|_share$|_agreement_with_\w+$|_drop$|_iou$|_average_precision$", self.metric))

    @property
    def is_estimated_time(self) -> bool:
        """Whether a compiler estimated a time, which leaves out what the CPU computes."""
        return self.kind is Kind.ESTIMATED and self.metric.endswith(("_ms", "_cycles"))

    def value(self, build: ComparedBuild) -> float | None:
        """The metric of `build`; None if it has none from this source."""
        is_of_it = (kind_in(build, self.metric), source_of(build, self.kind, self.metric)) == (self.kind, self.source)
        return build.metrics.get(self.metric) if is_of_it else None

    def interval(self, build: ComparedBuild) -> tuple[float, float] | None:
        """The 95 % interval of the build's metric; None if it has none."""
        return build.interval(self.metric) if self.value(build) is not None else None


def kind_of(metric: str) -> Kind:
    """The kind of a metric of metrics.json."""
    otherwise = Kind.MEASURED if _MEASURED.search(metric) else Kind.COUNTED
    return next((kind for prefix, kind in _PREFIXES.items() if metric.startswith(prefix)), otherwise)


def kind_in(build: ComparedBuild, metric: str) -> Kind:
    """The kind of a build's metric: outputs on a device are as real as the device."""
    if metric in build.described:
        return Kind.MEASURED
    if metric.startswith("device_"):
        return _BY_FIRST_WORD.get(build.texts.get("device_provenance", "").partition(" ")[0], Kind.ON_DEVICE)
    return kind_of(metric)


def direction_of(metric: str) -> Direction | None:
    """Which values of a metric are better; None if neither."""
    name = metric.rpartition(".")[2] if metric.startswith(_NAMED_BY_THE_USER) else metric
    if _LESS_IS_BETTER.search(name):
        return "min"
    return "max" if _MORE_IS_BETTER.search(name) else None


def source_of(build: ComparedBuild, kind: Kind, metric: str) -> str:
    """The source of a metric of the build, which is of this kind."""
    if kind is Kind.COUNTED:
        return ""
    if kind in _OF_DEVICES:
        return build.device
    if metric.startswith(OWN_ESTIMATES):
        return OWN_TOOL
    return build.samples if kind is Kind.MEASURED else build.compiler


def columns_of(builds: Sequence[ComparedBuild]) -> list[Column]:
    """All columns with a value of any of `builds`, the most important first."""
    found = set()
    for build in builds:
        primary = {f"{program}_{build.texts.get(PRIMARY)}" for program in _PROGRAMS}
        for metric in build.metrics:
            if metric.rpartition(".")[2] in _NOT_OF_THE_BUILD or metric.endswith((LOW, HIGH)):
                continue
            kind = kind_in(build, metric)
            source = source_of(build, kind, metric)
            described, is_primary = build.described.get(metric, ""), metric in primary
            found.add(Column(metric=metric, kind=kind, source=source, described=described, is_primary=is_primary))
    order = {metric: position for position, metric in enumerate(_FIRST)}
    return sorted(found, key=lambda column: (order.get(column.metric, len(order)), column.metric, column.source))


def resolve_columns(name: str, columns: Iterable[Column]) -> list[Column]:
    """The columns of the metric with the name or alias `name`; may be empty."""
    columns = list(columns)
    primary = [column.metric for column in columns if column.is_primary] if name == "quality" else []
    primary.sort(key=lambda metric: _PROGRAMS.index(metric.partition("_")[0]))
    for metric in (name, *primary, *ALIASES.get(name, ())):
        if found := [column for column in columns if column.metric == metric]:
            return found
    return []
