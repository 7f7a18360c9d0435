"""Modules, parameters and buffers may have any name in the code that torch.fx generates, e.g. those of ModuleDict."""

from __future__ import annotations

import functools
from keyword import iskeyword

from lowerdeck.compat import pytorch


@functools.cache
def read_any_name() -> None:
    """Let generated code read attributes of any name for the rest of the process.

    It is generated when it is needed, which may be long after a program was traced or loaded.
    """
    pytorch.FORMAT_TARGET.apply(_attribute_path)


def _attribute_path(base: str, target: str) -> str:
    """Python's expression for the attribute `target` of `base`, e.g. `getattr(self.blocks, 'in')`.

    An identifier beyond ASCII is read by getattr, too: Python's parser would normalize it, and `setattr` does not.
    """
    for name in target.split("."):
        is_plain = name.isascii() and name.isidentifier() and not iskeyword(name)
        base = f"{base}.{name}" if is_plain else f"getattr({base}, {name!r})"
    return base
