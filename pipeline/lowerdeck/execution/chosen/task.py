"""The task that the configuration chooses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowerdeck.execution.resolved_config import section

if TYPE_CHECKING:
    from lowerdeck.evaluation.records import ChosenTask


def chosen_task() -> ChosenTask:
    """The chosen task with its options."""
    from lowerdeck import tasks
    from lowerdeck.config.schema import TaskConfig
    from lowerdeck.evaluation.records import ChosenTask

    config = section(TaskConfig)
    task = tasks.source(config.source)
    return ChosenTask(task=task, options=task.Options(**config.options))
