"""Titles, units and values of metrics as text, for the terminal and the page."""

from __future__ import annotations

import math
import re

from lowerdeck.comparison.builds import ComparedBuild
from lowerdeck.comparison.columns import Column, Kind
from lowerdeck.contracts.devices import Provenance

_SPELLINGS = {
    "macs": "MACs", "sram": "SRAM", "flash": "flash", "dram": "DRAM", "npu": "NPU", "cpu": "CPU", "sqnr": "SQNR",
    "lsb": "LSB", "shram": "SHRAM", "ram": "RAM",
}  # fmt: skip
_TITLES = {
    "program_bytes": "size",
    "ram_bytes": "RAM",
    "planned_memory_bytes": "planned memory",
    "crossing_bytes": "across boundaries",
}
_PROVENANCE = {
    Kind.ESTIMATED: Provenance.ESTIMATED,
    Kind.SIMULATED: Provenance.SIMULATED,
    Kind.EMULATED: Provenance.EMULATED,
    Kind.ON_DEVICE: Provenance.MEASURED,
}
"""What titles say of metrics that are neither counted nor measured on this host."""
_UNITS = {"_bytes": "bytes", "_ms": "ms", "_db": "dB"}


def title(column: Column, *, with_source: bool = True) -> str:
    """The title of a column, and its source."""
    metric = column.metric
    if column.kind in _PROVENANCE:
        metric = re.sub("^(estimated|simulated|emulated|measured)_", "", metric)
    text = _TITLES.get(column.metric, "")
    if not text:
        for ending in _UNITS:
            metric = metric.removesuffix(ending)
        text = " ".join(_SPELLINGS.get(word, word) for word in metric.split("_"))
    said = source(column) if with_source else ""
    if column.kind in _PROVENANCE:
        provenance = _PROVENANCE[column.kind]
        return f"{text} ({provenance.by(said) if said else provenance.value})"
    return f"{text} {said}" if said else text


def source(column: Column) -> str:
    """The source of a metric, with an abbreviated digest; empty for counted metrics."""
    if column.kind is Kind.MEASURED and re.fullmatch(r"[0-9a-f]{64}", column.source):
        return f"samples {column.source[:8]}"
    return column.source


def unit(column: Column) -> str:
    """The unit of the results of `number`; empty for counts."""
    if column.is_fraction:
        return "%"
    return next((unit for ending, unit in _UNITS.items() if column.metric.endswith(ending)), "")


def number(column: Column, value: float | None, *, signed: bool = False) -> str:
    """A value without its unit; `-` for None."""
    if value is None:
        return "-"
    sign = "+z" if signed else "z"  # z: no minus sign before zero
    if column.is_fraction:
        return f"{100 * value:{sign}.2f}"
    if column.metric.endswith("_ms"):
        return f"{value:{sign},.3f}"
    if column.metric.endswith("_db"):
        return f"{value:{sign},.1f}"
    if float(value).is_integer() or (is_count(column) and abs(value) >= 10):
        return f"{value:{sign},.0f}"
    if is_count(column):  # a mean, which would be rounded to another count, or to none
        return f"{value:{sign}.2g}"
    return _decimal(value, sign)


def value(column: Column, build: ComparedBuild) -> str:
    """The value of a build without its unit, `≥` in front of a lower bound; `-` without one."""
    text = number(column, column.value(build))
    return f"≥ {text}" if text != "-" and build.is_lower_bound(column.metric) else text


def _decimal(value: float, sign: str) -> str:
    """A number that is neither a share nor a count: near 1, such as a cosine, and near 0 the first digits are alike."""
    if 0 < abs(value) < 0.001:
        return f"{value:{sign}.3g}"
    if abs(value) >= 1:
        return f"{value:{sign},.3f}"
    digits = max(5, 1 - math.floor(math.log10(1 - abs(value))))  # at least two of the distance from 1
    text = f"{value:{sign}.{digits}f}"
    return text[:-2] + text[-2:].rstrip("0")


def is_count(column: Column) -> bool:
    """Whether values are counts."""
    counts = r"(cycles|macs|nodes|ops|parameters|_bytes|crossings|boundary)$|^partitions$|^reasons"
    return re.search(counts, column.metric) is not None


def interval(column: Column, ends: tuple[float, float] | None, *, signed: bool = False) -> str:
    """The ends of an interval, e.g. `97.2 to 99.6`; empty for None."""
    if ends is None:
        return ""
    scale, sign = 100 if column.is_fraction else 1, "+" if signed else ""
    low, high = (scale * end for end in ends)
    digits = 3 if column.metric.endswith("_ms") else 1
    if not unit(column) and not is_count(column):
        return f"{_decimal(low, sign)} to {_decimal(high, sign)}"
    return f"{low:{sign}.{digits}f} to {high:{sign}.{digits}f}"
