"""Replacements in torchao."""

from __future__ import annotations

from lowerdeck.compat.replacement import Replacement

HISTOGRAM_SEARCH = Replacement(
    target="torchao.quantization.pt2e.observer:HistogramObserver._non_linear_param_search",
    reason="Each request for a scale searches the range again, and so does each bias whose scale derives from it. A "
    "search takes half a second where nearly all values are in few bins.",
    for_speed_only=True,
)
