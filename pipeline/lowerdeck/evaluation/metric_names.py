"""Names of the metrics of tasks, apart from their computation: who shows metrics need not import NumPy."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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


def class_labels(names: Sequence[str]) -> Callable[[int], str]:
    """Class index -> its name, or its number where it has no name of its own; NO_CLASS for -1 and for no other."""

    def label(index: int) -> str:
        if index < 0:
            return NO_CLASS
        own = names[index] if index < len(names) else None
        if own is not None and own != NO_CLASS and names.count(own) == 1:
            return own
        return f"class {index}" if own == NO_CLASS or str(index) in names else str(index)

    return label
