"""Metrics by name: every module here is a metric with a function `compute(outputs)`."""

from __future__ import annotations

from typing import cast

from lowerdeck.contracts.evaluation import Metric
from lowerdeck.registry import components

DEFINES = frozenset({"compute"})
"""What a metric defines at its top level."""


def available() -> tuple[str, ...]:
    """Names of the available metrics."""
    return components.modules_defining(__path__[0], DEFINES)


def source(name: str) -> Metric:
    """The metric `name`.

    Raises:
        ConfigurationError: it does not exist.
    """
    return cast(Metric, components.load(__name__, __path__[0], name, DEFINES, "metric"))
