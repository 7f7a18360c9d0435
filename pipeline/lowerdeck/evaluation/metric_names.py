"""Names of the metrics of tasks, apart from their computation: who shows metrics need not import NumPy."""

from __future__ import annotations

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
