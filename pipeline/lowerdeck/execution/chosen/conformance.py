"""How the configuration wants programs to be compared."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowerdeck.execution.resolved_config import section

if TYPE_CHECKING:
    from lowerdeck.contracts.conformance import ConformanceSettings


def chosen_conformance() -> ConformanceSettings:
    """The part of the section `evaluation` that partition and convert read."""
    from lowerdeck.config.schema import EvaluationConfig

    return section(EvaluationConfig).conformance
