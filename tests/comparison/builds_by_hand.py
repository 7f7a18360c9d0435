"""Builds and columns made by hand, for tests of what is compared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lowerdeck.comparison.builds import ComparedBuild
from lowerdeck.comparison.columns import Column, kind_of


def build(label: str, metrics: Mapping[str, float] | None = None, **fields: Any) -> ComparedBuild:
    """A build that saw the samples `s` and was compiled by `c`."""
    return ComparedBuild(
        label=label, name=label, **({"metrics": metrics or {}, "compiler": "c", "samples": "s"} | fields)
    )


def share(label: str, value: float, low: float, high: float, metric: str = "quantized_accuracy") -> ComparedBuild:
    """A build with one share and its interval."""
    return build(label, {metric: value, f"{metric}_low": low, f"{metric}_high": high})


def column(metric: str, source: str = "s") -> Column:
    """The column of a metric."""
    return Column(metric=metric, kind=kind_of(metric), source=source)
