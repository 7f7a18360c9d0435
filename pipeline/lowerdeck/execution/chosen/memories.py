"""The memories of the target that the configuration chooses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowerdeck.execution.resolved_config import section

if TYPE_CHECKING:
    from lowerdeck.contracts.memories import Memory


def memory_banks() -> list[Memory]:
    """The memories that ExecuTorch plans activations into, one arena each; empty for one arena without a bound."""
    from lowerdeck.config.schema import TargetConfig

    target = section(TargetConfig)
    return [memory for memory in target.memories if "planned" in memory.holds] if target.banked_memory_planning else []
