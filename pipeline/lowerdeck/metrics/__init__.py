"""Metrics by name: every module here is a metric with a function `compute(outputs)`."""

from __future__ import annotations

import importlib
import pkgutil
from typing import cast

from lowerdeck.contracts.evaluation import Metric


def available() -> tuple[str, ...]:
    """Names of the available metrics."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))


def source(name: str) -> Metric:
    """The metric `name`."""
    return cast(Metric, importlib.import_module(f"{__name__}.{name}"))
