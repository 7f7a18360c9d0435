"""One attribute of a foreign module or class, and why this project replaces it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

TRIED_WITH: Mapping[str, Mapping[str, str]] = {
    "executorch": {"executorch": "1.5.1"},
    "torch": {"torch": "2.14.1"},
    "hydra": {"hydra-core": "1.3.8"},
    "ethosu": {"ethos-u-vela": "5.1.0"},
}
"""Imported package -> its distribution, and the version with which all replacements in it were found to work."""
_ABSENT = object()


@dataclass(frozen=True, kw_only=True)
class Replacement:
    """Declares what is replaced; declaring it imports nothing.

    A module-level constant of a module in compat/, so that tests/compat/ finds it. Replacing is not meant for several
    threads at once.
    """

    target: str
    """`package.module:attribute` or `package.module:Class.attribute`, on the class that defines it."""
    reason: str
    """What is wrong or missing without it."""
    upstream: str | None = None
    """Issue or pull request, as `owner/repository#number`, where there is one."""
    for_speed_only: bool = False
    """Whether results are the same without it; a test then shows that they are."""
    is_addition: bool = False
    """Whether the class has no such attribute of its own."""

    @property
    def module(self) -> str:
        """Import path of the module that has the attribute or its class."""
        return self.target.partition(":")[0]

    def original(self) -> Any:
        """What is there now; of a static method its function.

        Raises:
            AttributeError: the installed version has no such attribute.
        """
        owner, name = self.owner()
        return getattr(owner, name)

    def owner(self) -> tuple[Any, str]:
        """The module or class, which is imported for it, and the name of its attribute."""
        owner: Any = importlib.import_module(self.module)
        *path, name = self.target.partition(":")[2].split(".")
        for part in path:
            owner = getattr(owner, part)
        return owner, name

    def apply(self, value: Any) -> None:
        """Put `value` in its place for the rest of the process; in place of a static method it becomes one."""
        owner, name = self.owner()
        is_static = isinstance(vars(owner).get(name), staticmethod)
        setattr(owner, name, staticmethod(value) if is_static else value)

    @contextmanager
    def active(self, value: Any) -> Iterator[None]:
        """Put `value` in its place while the context is open."""
        owner, name = self.owner()
        before = vars(owner).get(name, _ABSENT)
        assert (before is _ABSENT) == self.is_addition, f"{self.target} is not what was declared"
        self.apply(value)
        try:
            yield
        finally:
            if before is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, before)


def provide_module(name: str, module: ModuleType) -> None:
    """Have `import name` give `module` in the rest of the process."""
    sys.modules[name] = module
