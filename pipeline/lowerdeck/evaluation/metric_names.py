"""Names of the metrics of tasks, apart from their computation: who shows metrics need not import NumPy."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any

from lowerdeck.registry.components import similar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

DROPS = (("quantization_drop", "float", "quantized"), ("delegation_drop", "quantized", "delegated"))
"""Name of a drop, and the programs before and after it."""
NO_CLASS = "no class"
"""Name of what a program predicts whose scores are NaN."""
PRIMARY = "primary_metric"
"""Key of metrics.json: the metric whose drop is `quantization_drop` and `delegation_drop`."""
DESCRIPTIONS = "task_metrics."
"""Prefix of texts in metrics.json: of each metric of the task `max` or `min`, the better values, and `share` for
fractions."""
INFINITE = "infinite"
"""Replaces a metric that is infinite, which JSON cannot have as a number; it meets no gate."""

MASKED_SHARE = "output_masked_share"
"""The share of an output's elements that masks leave out; `outputs.NAME.` in front where there are several."""

_PROGRAMS = ("float", "quantized", "delegated")
_OF_PAIRS = re.compile(
    r"(quantized|delegated|delegated_against_quantized)_(sqnr_db|cosine)"
    r"|(quantized|delegated)_((error_(max|mean)(_lsb)?|exact_share)|agreement_with_(float|quantized))"
)
_OF_PROGRAMS_ALONE = re.compile(rf"({'|'.join(_PROGRAMS)})_(threshold|events|hours)")
"""What tasks of the package measure beside their metrics."""
_OPEN = re.compile(
    r".*\..*|(estimated|device|measured|emulated|simulated|num_device)_.*|.*_(compute_nodes|macs|macs_share)"
)
"""Names that depend on the model, the compiler, the device or the libraries."""
_OF_EVERY_BUILD = (
    *("accelerated_macs_share", "accelerated_share", "compute_nodes", "crossing_bytes", "crossings"),
    *("delegated_compute_nodes", "delegated_macs_share", "delegated_parameter_share", "delegated_share"),
    *("library_crossings", "method_allocator_bytes", "mismatches", "num_layer_samples", "num_samples", "output_lsb"),
    *(MASKED_SHARE, "partitions", "planned_memory_bytes", "portable_macs", "program_bytes", "ram_bytes"),
    *("scratch_bytes", "total_macs", "total_parameters", "transposes_at_boundary", "transposes_delegated"),
    *(
        "transposes_in_delegates",
        "transposes_inserted",
        "undelegated_macs",
        "undelegated_parameters",
        "worst_layer_sqnr_db",
    ),
)


def wholly_masked(metrics: Mapping[str, Any]) -> list[str]:
    """The names of the outputs of which masks leave nothing, so that no metric is defined; `output` for a single one.

    Args:
        metrics: The content of metrics.json.
    """
    shares = {name.removesuffix(MASKED_SHARE): value for name, value in metrics.items() if name.endswith(MASKED_SHARE)}
    return [path[len("outputs.") : -1] or "output" for path, share in shares.items() if share == 1]


def of_task(metrics: Sequence[str]) -> tuple[str, ...]:
    """What a build records of a task's `metrics`: of each program, and the drops; those of the first have no suffix."""
    programs = [f"{program}_{metric}" for metric in metrics for program in reversed(_PROGRAMS)]
    suffixes = ["", *(f"_{metric}" for metric in metrics[1:])]
    return (*programs, *(f"{drop}{suffix}" for suffix in suffixes for drop, _, _ in DROPS))


def may_be_measured(name: str, metrics: Sequence[str]) -> bool:
    """Whether a build for a task of the package with these `metrics` may have the number `name` in metrics.json."""
    if name in _OF_EVERY_BUILD or is_of_task(name, metrics):
        return True
    base = _without_end(name)
    return any(pattern.fullmatch(base) for pattern in (_OPEN, _OF_PAIRS, _OF_PROGRAMS_ALONE))


def is_of_task(name: str, metrics: Sequence[str]) -> bool:
    """Whether `name` is one of a task's `metrics` for one program, a drop of it, or an end of its interval."""
    return _without_end(name) in of_task(metrics)


def _without_end(name: str) -> str:
    """`name` without what marks an end of its interval."""
    return re.sub(r"_(low|high)$", "", name)


def near(name: str, metrics: Iterable[str]) -> list[str]:
    """Up to three of `metrics` that `name` may be a misspelling or a part of."""
    listed = [metric for metric in metrics if not metric.endswith(("_low", "_high"))]
    containing = sorted((metric for metric in listed if name in metric), key=lambda metric: "delegated" not in metric)
    return (similar(name, listed) or containing)[:3]


def near_of_build(name: str, metrics: Sequence[str]) -> list[str]:
    """`near` for a task with these `metrics`."""
    return near(name, (*of_task(metrics), *_OF_EVERY_BUILD))


def class_labels(names: Sequence[str]) -> Callable[[int], str]:
    """Class index -> its name, or its number where it has no name of its own; NO_CLASS for -1 and for no other."""
    counts = Counter(names)

    def label(index: int) -> str:
        if index < 0:
            return NO_CLASS
        own = names[index] if index < len(names) else None
        if own is not None and own != NO_CLASS and counts[own] == 1:
            return own
        return f"class {index}" if own == NO_CLASS or str(index) in counts else str(index)

    return label
