"""Finds the modules of a package that define one kind of component, without importing them.

A model or dataset source is a module with an `Options` class and a function `build` or `load`. Listing them must not
import their dependencies (torch takes 1.5 s), so their source text is parsed instead. Modules that lack these names are
helpers and not listed.
"""

from __future__ import annotations

import ast
import difflib
import importlib
import os
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from types import ModuleType

from lowerdeck.contracts.errors import ConfigurationError


@cache
def modules_defining(folder: str, names: frozenset[str]) -> tuple[str, ...]:
    """Return the sorted names of the modules directly in `folder` that define every one of `names` at top level.

    Args:
        folder: The package's folder, `__path__[0]`.
        names: Required classes and functions.
    """
    return tuple(path.stem for path in sorted(Path(folder).glob("*.py")) if names <= _top_level_definitions(path))


@cache
def is_defining(folder: str, name: str, names: frozenset[str]) -> bool:
    """Whether `name` is one of `modules_defining`, whose other modules are not parsed: that takes 0.1 s."""
    file = f"{name}.py"  # compared with the listing, because some file systems ignore case
    return file in os.listdir(folder) and names <= _top_level_definitions(Path(folder, file))  # noqa: PTH208  names


def load(package: str, name: str, names: frozenset[str], kind: str) -> ModuleType:
    """Import `package.name`, or the user's own module if `name` is dotted; compose has checked that it may be named.

    Args:
        package: An imported package.
        name: Name of the module.
        names: Required classes and functions, as for `modules_defining`.
        kind: What the modules are, for the message.

    Raises:
        ConfigurationError: `package` has no such module with `names`.
    """
    if is_own(name):
        return importlib.import_module(name)
    folder = sys.modules[package].__path__[0]
    if not is_defining(folder, name, names):
        available = modules_defining(folder, names)
        raise ConfigurationError(
            f"unknown {kind} {name!r}; there are: {', '.join(available)}.{did_you_mean(name, available)}"
        )
    return importlib.import_module(f"{package}.{name}")


def is_own(name: str) -> bool:
    """Whether `name` is the dotted name of a user's own module, such as `plugins.my_data`."""
    return "." in name


def module_of(package: str, name: str) -> str:
    """Full name of the module that a configuration calls `name` where `package` has the components."""
    return name if is_own(name) else f"{package}.{name}"


def is_installed(file: Path) -> bool:
    """Whether a source file is in a folder of installed packages, which change with their version."""
    return not {"site-packages", "dist-packages"}.isdisjoint(file.parts)


def missing_definitions(path: Path, names: frozenset[str]) -> list[str]:
    """Those of `names` that the module at `path` does not define at top level, sorted; the module is not imported."""
    return sorted(names - _top_level_definitions(path))


def similar(given: str, allowed: Iterable[str], cutoff: float = 0.6) -> list[str]:
    """Return up to three of `allowed` that `given` may be a misspelling of, the most similar first.

    Args:
        given: The name as written; case is ignored.
        allowed: The valid names.
        cutoff: Minimum similarity, 0 ... 1, as defined by `difflib`.
    """
    by_lower = {name.lower(): name for name in allowed}
    return [by_lower[name] for name in difflib.get_close_matches(given.lower(), by_lower, n=3, cutoff=cutoff)]


def did_you_mean(given: str, allowed: Iterable[str], cutoff: float = 0.6) -> str:
    """Return ` Did you mean X?` for messages, empty where nothing is similar; arguments as for `similar`."""
    near = similar(given, allowed, cutoff)
    return f" Did you mean {' or '.join(near)}?" if near else ""


def string_constant(path: Path, name: str) -> str:
    """Read the string that the module at `path` assigns to `name` at top level, without importing the module.

    Raises:
        LookupError: there is no such assignment.
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
