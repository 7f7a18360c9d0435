"""How evaluate executes host twins, as the configuration chooses it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowerdeck.execution.resolved_config import section

if TYPE_CHECKING:
    from lowerdeck.runtime.batches import Engine
    from lowerdeck.runtime.floats import FloatProgram


def chosen_engine(seed: int) -> Engine:
    """The chosen engine, whose cross-checked samples `seed` draws."""
    from lowerdeck.config.schema import EvaluationConfig
    from lowerdeck.runtime.batches import Engine

    config = section(EvaluationConfig)
    return Engine(
        name=config.engine, batch_size=config.batch_size, num_cross_checked=config.cross_check_samples, seed=seed
    )


def open_program() -> FloatProgram:
    """The converted program, executed as the configuration chooses it; see `open_converted_program`."""
    from lowerdeck.artifacts.host_programs import open_converted_program
    from lowerdeck.config.schema import EvaluationConfig

    config = section(EvaluationConfig)
    return open_converted_program(config.resolver, config.device)
