"""The gates that the configuration chooses."""

from __future__ import annotations

from lowerdeck.execution.resolved_config import section


def chosen_gates() -> dict[str, float | None]:
    """Bounds of the chosen gates by name; None if a gate is off."""
    from lowerdeck.config.schema import GatesConfig
    from lowerdeck.evaluation.gates import bounds

    return bounds(section(GatesConfig))
