"""Defects: what a build records of itself, and what keeps it from being shipped whatever its gates are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

NUM_MISMATCHES = "mismatches"
"""Metric: number of differences from the quantized model that the configuration accepts."""
_MISMATCH_ERRORS, _NOT_EXECUTED, _NOT_BUNDLED = "mismatch_errors", "delegated_failure", "firmware_failure"
_NOT_ON_DEVICE = "device_failure"
NOT_FINITE = "not_finite"
"""Metric, if there are some: outputs that are NaN or infinite where the float program's are numbers, in words."""
_MEANINGS = {
    _MISMATCH_ERRORS: "computes something else than the quantized model, as on_mismatch: warn accepts",
    NOT_FINITE: "returns NaN or infinities where the float program returns numbers",
    _NOT_EXECUTED: "was not executed on this host",
    _NOT_BUNDLED: "has no firmware bundle",
    _NOT_ON_DEVICE: "was not executed on its device",
}
"""Texts of metrics.json that are present only where a build has the defect."""


def defect_metrics(
    mismatches: Sequence[str], execution_failure: str | None = None, bundle_failure: str | None = None
) -> dict[str, int | str]:
    """The part of metrics.json that `defects` reads.

    Args:
        mismatches: Those of the delegation plan.
        execution_failure: Why this host could not execute the `.pte`; None where it did.
        bundle_failure: Why there is no firmware bundle; None where there is one.
    """
    texts = {
        _MISMATCH_ERRORS: "; ".join(mismatches),
        _NOT_EXECUTED: execution_failure,
        _NOT_BUNDLED: bundle_failure,
    }
    return {NUM_MISMATCHES: len(mismatches)} | {name: text for name, text in texts.items() if text}


def defects(metrics: Mapping[str, Any]) -> tuple[str, ...]:
    """One line for each defect of a build.

    Args:
        metrics: The content of metrics.json; that of earlier versions has no defects.
    """
    return tuple(f"{meaning}: {metrics[name]}" for name, meaning in _MEANINGS.items() if metrics.get(name))
