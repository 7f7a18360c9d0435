"""What models are for: every module here with `Options`, `metrics`, `record` and `measure` is a task.

See contracts.tasks.Task. To add your own, write a module here, or in a package listed under `plugins` in params.yaml,
and one YAML in conf/task. Modules without these names are helpers.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from typing import cast

from lowerdeck.contracts.errors import ConfigurationError
from lowerdeck.contracts.tasks import Task
from lowerdeck.registry import components, import_paths

_MEMBERS = ("Options", "metrics", "record", "measure")


def available() -> tuple[str, ...]:
    """Valid values of `task.source`, sorted, beside modules of plug-ins; found without importing the modules."""
    return components.modules_defining(__path__[0], frozenset(_MEMBERS))


def source(name: str) -> Task:
    """The task `name`: a module here, or one of a plug-in by its dotted name, e.g. `my_models.wake_words`.

    Raises:
        ConfigurationError: it does not exist, or lacks what a task consists of.
    """
    if "." not in name:
        return cast(Task, components.load(__name__, name, available(), "task"))
    try:
        module = importlib.import_module(name)
    except Exception as error:  # importing a user's module may raise anything
        raise ConfigurationError(
            f"task.source is {name}, which cannot be imported: {type(error).__name__}: {error}. Install it, or put the "
            "folder that holds it on PYTHONPATH"
        ) from error
    if missing := [member for member in _MEMBERS if not hasattr(module, member)]:
        raise ConfigurationError(f"task.source is {name}, which lacks {', '.join(missing)} (contracts.tasks.Task)")
    return cast(Task, module)


def check_permitted(name: str, plugins: Sequence[str]) -> None:
    """Raise ConfigurationError unless `name` is a task here, or a module of a package under `plugins`."""
    if "." in name and re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)+", name):
        import_paths.check_permitted(name, "task.source", __name__, plugins)
    elif name not in available():
        raise ConfigurationError(
            f"task.source is {name!r}; allowed are {', '.join(available())}, and dotted names of modules in packages "
            f"under `plugins`.{components.did_you_mean(name, available())}"
        )
