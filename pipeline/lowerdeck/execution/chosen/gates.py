"""The gates that the configuration chooses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lowerdeck.execution.resolved_config import section


def chosen_gates() -> dict[str, float | None]:
    """Bounds of the chosen gates by name, without those that the stage measure checks; None if a gate is off."""
    from lowerdeck.evaluation.gates import is_of_device

    return {gate: bound for gate, bound in _bounds().items() if not is_of_device(gate)}


def check_chosen_gates(metrics: Mapping[str, Any]) -> None:
    """Check `chosen_gates`.

    Raises:
        GateError: a gate fails.
    """
    from lowerdeck.evaluation.gates import check_gates

    check_gates(chosen_gates(), metrics)


def check_device_gates(metrics: Mapping[str, Any]) -> None:
    """Check the chosen gates on what a device measures.

    Raises:
        GateError: a gate fails.
    """
    from lowerdeck.evaluation.gates import check_gates, is_of_device

    check_gates({gate: bound for gate, bound in _bounds().items() if is_of_device(gate)}, metrics)


def _bounds() -> dict[str, float | None]:
    from lowerdeck.config.schema import GatesConfig
    from lowerdeck.evaluation.gates import bounds

    return bounds(section(GatesConfig))
