"""When baseline executes programs in batches, as the configuration chooses it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowerdeck.execution.resolved_config import section

if TYPE_CHECKING:
    from lowerdeck.steps.baseline import BatchChoice


def chosen_batches(seed: int) -> BatchChoice:
    """The choice, whose samples to execute both ways `seed` draws."""
    from lowerdeck.config.schema import EvaluationConfig
    from lowerdeck.steps.baseline import BatchChoice

    config = section(EvaluationConfig)
    return BatchChoice(most=config.batch_size, num_checked=config.cross_check_samples, seed=seed)
