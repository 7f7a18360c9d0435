"""How evaluate executes host twins, as the configuration chooses it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowerdeck.execution.resolved_config import section

if TYPE_CHECKING:
    from lowerdeck.runtime.batches import Engine


def chosen_engine(seed: int) -> Engine:
    """The chosen engine, whose cross-checked samples `seed` draws."""
    from lowerdeck.config.schema import EvaluationConfig
    from lowerdeck.runtime.batches import Engine

    config = section(EvaluationConfig)
    return Engine(
        name=config.engine, batch_size=config.batch_size, num_cross_checked=config.cross_check_samples, seed=seed
    )
