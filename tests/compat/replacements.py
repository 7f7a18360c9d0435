"""All replacements that are declared."""

from __future__ import annotations

import importlib
import pkgutil

from lowerdeck import compat
from lowerdeck.compat.replacement import Replacement


def declared() -> dict[str, Replacement]:
    """`module.NAME` in compat/ -> the replacement."""
    found: dict[str, Replacement] = {}
    for module in pkgutil.iter_modules(compat.__path__):
        content = vars(importlib.import_module(f"{compat.__name__}.{module.name}"))
        found |= {f"{module.name}.{name}": value for name, value in content.items() if isinstance(value, Replacement)}
    return found
