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
    "torchao": {"torchao": "0.18.0"},
    "dvc": {"dvc": "3.67.1"},
    "hydra": {"hydra-core": "1.3.8"},
    "mlflow": {"mlflow": "3.17.2"},
    "ethosu": {"ethos-u-vela": "5.1.0"},
    "rich": {"rich": "15.0.0"},
    "importlib": {"flatbuffers": "25.2.10"},
}
"""Imported package -> its distribution, or the one that uses what is replaced, and the version for which all
replacements in it are tested."""
_ABSENT = object()


@dataclass(frozen=True, kw_only=True)
class Replacement:
    """Declares a replaced attribute; a declaration imports nothing.

    It is a module-level constant of a module in compat/, where tests/compat/ finds it. Replacing is not thread-safe.
    """

    target: str
    """`package.module:attribute`, or `package.module:Class.attribute` with the class that defines it."""
    reason: str
    """What is wrong or missing without the replacement."""
    upstream: str | None = None
    """Issue or pull request, as `owner/repository#number`, if there is one."""
    for_speed_only: bool = False
    """Whether results are the same without it, as a test then verifies."""
    is_addition: bool = False
    """Whether the class itself does not define the attribute."""

    @property
    def module(self) -> str:
        """Import path of the module that contains the attribute or its class."""
        return self.target.partition(":")[0]

    def original(self) -> Any:
        """Return the current value; for a static method, its function.

        Raises:
            AttributeError: the installed version has no such attribute.
        """
        owner, name = self.owner()
        return getattr(owner, name)

    def owner(self) -> tuple[Any, str]:
        """Import and return the module or class, and the name of its attribute."""
        owner: Any = importlib.import_module(self.module)
        *path, name = self.target.partition(":")[2].split(".")
        for part in path:
            owner = getattr(owner, part)
        return owner, name

    def apply(self, value: Any) -> None:
        """Replace the attribute for the rest of the process; static methods stay static."""
        owner, name = self.owner()
        is_static = isinstance(vars(owner).get(name), staticmethod)
        setattr(owner, name, staticmethod(value) if is_static else value)

    @contextmanager
    def active(self, value: Any) -> Iterator[None]:
        """Replace the attribute while the context is open."""
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
    """Make `import name` return `module` for the rest of the process."""
    sys.modules[name] = module
