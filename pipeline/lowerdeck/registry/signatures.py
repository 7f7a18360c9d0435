"""Determines the keyword arguments of a class or function, from its source text where possible.

The process that checks configuration must not import torch only to learn a parameter's name.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import sys
from collections.abc import Sequence
from contextlib import suppress
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
    """Parse the parameters of a class or function at the top level of `module`, without importing it.

    Packages around it are imported if one of its imports cannot be found otherwise: they may extend the import path.

    Args:
        module: Full dotted name.
        attribute: Name of the class or function.
        key: Configuration key of the import path, for messages.

    Returns:
        None where the source is not sufficient: the name is imported, assigned or decorated, a class without its own
        `__init__`, or the module may extend the import path before an import that cannot be found.

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
    if not _are_found(module, tree, key):
        return None
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


def _are_found(module: str, tree: ast.Module, key: str) -> bool:
    """Whether all top-level imports are found; False where only the import can tell, because code may extend its path.

    Raises:
        ConfigurationError: one is not found, and nothing but installed packages is imported before it.
    """
    may_extend = False
    for statement in tree.body:
        for name in _imported(statement):
            found = _is_found_installed(name, module)
            if found is None and may_extend:
                return False
            if found is None:
                raise ConfigurationError(
                    f"{key}: {module} cannot be imported: it imports {name}, and there is no such module. Install it."
                )
            may_extend = may_extend or not found
        may_extend = may_extend or _is_executed(statement)
    return True


def _imported(statement: ast.stmt) -> list[str]:
    if isinstance(statement, ast.Import):
        return [alias.name for alias in statement.names]
    return [statement.module] if isinstance(statement, ast.ImportFrom) and not statement.level else []  # type: ignore[list-item]


def _is_executed(statement: ast.stmt) -> bool:
    """Whether a statement runs code of its own, or such of the package that it is in."""
    is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    is_absolute = isinstance(statement, ast.ImportFrom) and not statement.level
    return not (is_text or is_absolute or isinstance(statement, (ast.Import, ast.FunctionDef, ast.ClassDef)))


def _is_found_installed(name: str, module: str) -> bool | None:
    """Whether the package that `module` imports by `name` is installed, or Python's own; None where there is none."""
    top = name.partition(".")[0]
    spec = _find_spec(top, None)
    if spec is None:
        with suppress(Exception):  # whoever imports the module reports that
            importlib.util.find_spec(module)  # imports the packages around it
        spec = _find_spec(top, None)
    if spec is None:
        return None
    places = [spec.origin] if spec.origin else [*(spec.submodule_search_locations or ())]
    return top in sys.stdlib_module_names or any(components.is_installed(Path(place)) for place in places)
