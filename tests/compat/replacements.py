"""All replacements that are declared, and what is computed without one of them."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import pytest

from lowerdeck import compat
from lowerdeck.compat.replacement import Replacement


def declared() -> dict[str, Replacement]:
    """`module.NAME` in compat/ -> the replacement."""
    found: dict[str, Replacement] = {}
    for module in pkgutil.iter_modules(compat.__path__):
        content = vars(importlib.import_module(f"{compat.__name__}.{module.name}"))
        found |= {f"{module.name}.{name}": value for name, value in content.items() if isinstance(value, Replacement)}
    return found


@contextmanager
def without(left_out: Replacement) -> Iterator[None]:
    """A context in which `left_out` is not replaced."""
    activate = Replacement.active
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Replacement, "active", lambda it, new: nullcontext() if it == left_out else activate(it, new))
        yield
