"""What is said about a build, in words: the terminal, the HTML report and MLflow take it from here and so say the same.

Figures are those of metrics.json; the manifest is that of the converted program.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline.config.schema import Config

_ABBREVIATIONS = ("cpu", "dram", "macs", "npu", "sram")


@dataclass(frozen=True, kw_only=True)
class Confusion:
    """How often which class was taken for which."""

    labels: tuple[str, ...]
    """Classes that occur, actual or predicted, in ascending order."""
    counts: tuple[tuple[int, ...], ...]
    """[actual][predicted], both in the order of `labels`."""


def read_confusion(path: Path) -> Confusion | None:
    """The confusion matrix of the pairs in the CSV at `path`, None where no sample had a label."""
    with path.open(newline="") as file:
        pairs = Counter((row["actual"], row["predicted"]) for row in csv.DictReader(file))
    if not pairs:
        return None
    labels = sorted({label for pair in pairs for label in pair}, key=_numbers_first)
    counts = tuple(tuple(pairs[actual, predicted] for predicted in labels) for actual in labels)
    return Confusion(labels=tuple(labels), counts=counts)


def confusion_title(figures: Mapping[str, Any]) -> str:
    """Which program the confusion matrix is of: the most real one that was executed."""
    program = "delegated" if isinstance(figures.get("delegated_accuracy"), float) else "quantized"
    return f"Confusion matrix of the {program} program"


def rows(config: Config, figures: Mapping[str, Any], manifest: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The figures of a build as pairs (what, value), in the order in which they are read."""
    converter = manifest["converter"]
    table = [
        ("target", f"{config.target.name} ({config.target.backend})"),
        ("flavor", f"{converter['flavor']} ({converter['name']} {converter['version']})"),
        ("model", f"{config.model.name} on {config.dataset.name}, {config.quantization.name}"),
    ]
    table += [
        (f"{program} accuracy", accuracy(figures.get(f"{program}_accuracy"), figures["num_samples"]))
        for program in ("float", "quantized", "delegated")
    ]
    table += [
        ("delegated nodes", delegation(figures)),
        ("size", size(figures["program_bytes"])),
        ("planned memory", size(figures["planned_memory_bytes"])),
    ]
    return table + estimates(figures, converter["flavor"])


def accuracy(value: Any, num_samples: int) -> str:
    """An accuracy as a percentage with its number of samples; what is no number stays the text that it is."""
    if value is None:
        return "not measured"
    return f"{100 * value:.2f} % of {num_samples:,} samples" if is_number(value) else str(value)


def delegation(figures: Mapping[str, Any]) -> str:
    """E.g. `9 of 9 in 1 partition`."""
    partitions = "1 partition" if figures["partitions"] == 1 else f"{figures['partitions']} partitions"
    return f"{figures['delegated_compute_nodes']} of {figures['compute_nodes']} in {partitions}"


def size(size_bytes: int) -> str:
    """A size in bytes and, from one KiB on, in KiB."""
    return f"{size_bytes:,} bytes" + (f" ({size_bytes / 1024:,.1f} KiB)" if size_bytes >= 1024 else "")


def estimates(figures: Mapping[str, Any], flavor: str) -> list[tuple[str, str]]:
    """What the compiler predicts, each marked as its estimate; the most asked-for figure first."""
    author = flavor.capitalize() if flavor.isalpha() else flavor
    keys = sorted((key for key in figures if key.startswith("estimated_")), key=lambda key: ("_time_" not in key, key))
    return [(_words(key), f"{_quantity(key, figures[key])} ({author}'s estimate)") for key in keys]


def comparisons(figures: Mapping[str, Any]) -> list[tuple[str, str]]:
    """How programs compare with one another: agreement, drop and signal to noise ratio."""
    pairs = []
    for key, value in sorted(figures.items()):
        if not is_number(value):
            continue
        if "_agreement_with_" in key or key.endswith("_drop"):
            pairs.append((key.replace("_", " "), f"{100 * value:.2f} %"))
        elif key.endswith("_sqnr_db"):
            pairs.append((key.removesuffix("_sqnr_db") + " SQNR", f"{value:.1f} dB"))
    return pairs


def is_number(value: Any) -> bool:
    """Whether `value` is a measured figure; True and False are none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _words(key: str) -> str:
    words = key.removesuffix("_ms").removesuffix("_bytes").split("_")  # the value shows these units
    return " ".join(word.upper() if word in _ABBREVIATIONS else word for word in words)


def _quantity(key: str, value: Any) -> str:
    if not is_number(value):
        return str(value)
    if key.endswith("_bytes"):
        return size(int(value))
    if key.endswith("_ms"):
        return f"{value:,.3f} ms"
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.3f}"


def _numbers_first(label: str) -> tuple[bool, int, str]:
    return (not label.isdecimal(), int(label) if label.isdecimal() else 0, label)
