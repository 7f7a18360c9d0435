"""What models are for: every module here with `Options`, `metrics`, `record` and `measure` is a task.

See contracts.tasks.Task. To add your own, write a module here, or in a package listed under `plugins` in params.yaml,
and one YAML in conf/task. Modules without these names are helpers.
"""

from __future__ import annotations

from typing import Any, cast

from lowerdeck.contracts.tasks import Task
from lowerdeck.registry import components

DEFINES = frozenset({"Options", "metrics", "record", "measure"})
"""What a task defines at its top level."""


def available() -> tuple[str, ...]:
    """Valid values of `task.source`, sorted, beside modules of plug-ins; found without importing the modules."""
    return components.modules_defining(__path__[0], DEFINES)


def source(name: str) -> Task:
    """The task `name`: a module here, or one of a plug-in by its dotted name, e.g. `my_models.wake_words`.

    Raises:
        ConfigurationError: it does not exist.
    """
    return cast(Task, components.load(__name__, name, DEFINES, "task"))


def judged_name(options: Any) -> str | None:
    """The output that a task's `options` name as `output`; None if they name none.

    In a task of a plug-in, `output` may mean something else, e.g. an index.
    """
    name = getattr(options, "output", None)
    return name if isinstance(name, str) and name else None
