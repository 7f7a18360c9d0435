"""Determines the keyword arguments of a class or function, from its source text where possible.

The process that checks configuration must not import torch only to learn a parameter's name.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

from lowerdeck.contracts.errors import ConfigurationError
from lowerdeck.registry import components


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """The keyword arguments of a callable."""

    keywords: tuple[str, ...]
    """Accepted names."""
    required: tuple[str, ...]
    """Parameters without a default, including positional-only ones, which keywords cannot set."""
    any_keyword: bool
    """Whether it has `**kwargs`."""


def parameters_of(callable_: Any) -> Parameters | None:
    """Inspect an imported callable; None where Python cannot (some built-in ones)."""
    try:
        signature = inspect.signature(callable_)
    except (TypeError, ValueError):
        return None
    parameters = list(signature.parameters.values())
    named = [item for item in parameters if item.kind not in (item.VAR_POSITIONAL, item.VAR_KEYWORD)]
    return Parameters(
        keywords=tuple(item.name for item in named if item.kind is not item.POSITIONAL_ONLY),
        required=tuple(item.name for item in named if item.default is item.empty),
        any_keyword=any(item.kind is item.VAR_KEYWORD for item in parameters),
    )


def parameters_in_source(module: str, attribute: str, key: str) -> Parameters | None:
    """Parse the parameters of a class or function at the top level of `module`, without importing anything.

    Args:
        module: Full dotted name.
        attribute: Name of the class or function.
        key: Configuration key of the import path, for messages.

    Returns:
        None where the source is not sufficient: the name is imported, assigned or decorated, or a class without its own
        `__init__`.

    Raises:
        ConfigurationError: there is no such module, or it imports a package that is not installed.
    """
    path = source_file(module, key)
    if path is None:
        return None
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    except (SyntaxError, ValueError) as error:
        raise ConfigurationError(f"{key}: {module} cannot be imported: {error}") from error
    _check_imports(module, tree, key)
    definitions = {
        node.name: node
        for node in tree.body
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and not node.decorator_list
    }
    definition = definitions.get(attribute)
    if isinstance(definition, ast.ClassDef):
        if definition.keywords:  # a metaclass may define `__call__`
            return None
        methods = {node.name: node for node in definition.body if isinstance(node, ast.FunctionDef)}
        init = methods.get("__init__")
        usual = init is not None and not init.decorator_list and "__new__" not in methods
        return _parameters(init.args, skip_self=True) if init is not None and usual else None
    return _parameters(definition.args, skip_self=False) if definition is not None else None


def _parameters(arguments: ast.arguments, *, skip_self: bool) -> Parameters:
    positional = [*arguments.posonlyargs, *arguments.args]
    without_default = positional[: len(positional) - len(arguments.defaults)][int(skip_self) :]
    by_keyword = [item for item in positional[int(skip_self) :] if item not in arguments.posonlyargs]
    keyword_only = [
        item for item, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if default is None
    ]
    return Parameters(
        keywords=tuple(item.arg for item in (*by_keyword, *arguments.kwonlyargs)),
        required=tuple(item.arg for item in (*without_default, *keyword_only)),
        any_keyword=arguments.kwarg is not None,
    )


def source_file(module: str, key: str) -> Path | None:
    """Find the module's `.py` without importing its parent packages; None where it is not a Python file.

    Raises:
        ConfigurationError: there is no such module.
    """
    parts = module.split(".")
    # find_spec does not import a top-level name, and supports editable installations.
    spec = _find_spec(parts[0], None)
    for depth in range(1, len(parts) + 1):
        if spec is None:
            raise ConfigurationError(
                f"{key}: there is no module {'.'.join(parts[:depth])}. Correct the name, install the "
                "package, or put the folder that holds it on PYTHONPATH."
            )
        if depth == len(parts):
            break
        folders = spec.submodule_search_locations or ()
        # Not the full name: in a folder without __init__.py, Python would look for the parent among loaded modules.
        found = _find_spec(parts[depth], list(folders))
        if found is None:
            siblings = sorted(path.stem for folder in folders for path in Path(folder).glob("[!_]*"))
            raise ConfigurationError(
                f"{key}: {'.'.join(parts[:depth])} has no module {parts[depth]}."
                f"{components.did_you_mean(parts[depth], siblings)}"
            )
        spec = found
    return Path(spec.origin) if spec and spec.origin and spec.origin.endswith(".py") else None


def _find_spec(name: str, folders: Sequence[str] | None) -> ModuleSpec | None:
    if folders is not None:
        return PathFinder.find_spec(name, folders)
    try:
        return importlib.util.find_spec(name)
    except ValueError:  # a loaded module without a spec, e.g. __main__
        return None


def _check_imports(module: str, tree: ast.Module, key: str) -> None:
    """Raise ConfigurationError where a top-level import names a package that is not installed."""
    for statement in tree.body:
        if isinstance(statement, ast.Import):
            names = [alias.name for alias in statement.names]
        elif isinstance(statement, ast.ImportFrom) and not statement.level and statement.module:
            names = [statement.module]
        else:
            continue
        for name in names:
            if _find_spec(name.partition(".")[0], None) is None:
                raise ConfigurationError(
                    f"{key}: {module} cannot be imported: it imports {name}, and there is no such module. Install it."
                )
