"""Finds the modules of a package that offer one kind of component, without importing them.

A model or dataset source is a module with an `Options` class and a function `build` or `load`. Listing them must not
import their dependencies (torch takes 1.5 s), so their source text is read instead. Modules beside them that
lack these names are helpers and not listed.
"""

from __future__ import annotations

import ast
import difflib
import importlib
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from types import ModuleType

from lowerdeck.contracts.errors import ConfigurationError


@cache
def modules_defining(folder: str, names: frozenset[str]) -> tuple[str, ...]:
    """Names of the modules directly in `folder` whose top level defines every one of `names`, sorted.

    Args:
        folder: the package's folder, as its `__path__[0]` says.
        names: classes and functions that have to be there.
    """
    return tuple(path.stem for path in sorted(Path(folder).glob("*.py")) if names <= _top_level_definitions(path))


def load(package: str, name: str, available: tuple[str, ...], kind: str) -> ModuleType:
    """Import `package.name`.

    Raises:
        ConfigurationError: there is no such module among `available`.
    """
    if name not in available:
        raise ConfigurationError(
            f"unknown {kind} {name!r}; there are: {', '.join(available)}.{did_you_mean(name, available)}"
        )
    return importlib.import_module(f"{package}.{name}")


def similar(given: str, allowed: Iterable[str], cutoff: float = 0.6) -> list[str]:
    """Up to three of `allowed` that `given` may be a misspelling of, the most similar first.

    Args:
        given: What was written; upper and lower case count as equal.
        allowed: What could have been meant.
        cutoff: Least similarity, 0 ... 1, as `difflib` measures it.
    """
    by_lower = {name.lower(): name for name in allowed}
    return [by_lower[name] for name in difflib.get_close_matches(given.lower(), by_lower, n=3, cutoff=cutoff)]


def did_you_mean(given: str, allowed: Iterable[str], cutoff: float = 0.6) -> str:
    """` Did you mean X?` for messages, or an empty string when nothing is similar; arguments as for `similar`."""
    near = similar(given, allowed, cutoff)
    return f" Did you mean {' or '.join(near)}?" if near else ""


def string_constant(path: Path, name: str) -> str:
    """The string that the module at `path` assigns to `name` at its top level, read without importing it.

    Raises:
        LookupError: it assigns none.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"), filename=path.name)
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=target)], value=ast.Constant(value=str(value))) if target == name:
                return value
    raise LookupError(f"{path} assigns no string to {name}")


def _top_level_definitions(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"), filename=path.name)
    return frozenset(
        node.name for node in tree.body if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
    )
