"""Resolves classes and functions that configuration names by import path, `package.module:attribute`.

Naming an import path in a configuration file executes that code. Only the project's own package and those under
`plugins` in params.yaml may be named: a configuration from elsewhere cannot reach other installed packages.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from contextlib import chdir
from typing import Any

from lowerdeck.contracts.errors import ConfigurationError
from lowerdeck.registry import components, signatures


def split_import_path(path: str, key: str, example: str) -> tuple[str, str]:
    """Split an import path into module and attribute.

    Args:
        path: The configured value.
        key: Configuration key of `path`, for messages.
        example: A valid path for this key.

    Raises:
        ConfigurationError: `path` is not an import path.
    """
    if not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*", path):
        raise ConfigurationError(f"{key} is {path!r}; it must be package.module:attribute, e.g. {example}")
    module, _, attribute = path.partition(":")
    return module, attribute


def check_permitted(path: str, key: str, own_package: str, plugins: Sequence[str]) -> None:
    """Raise ConfigurationError unless the module of `path` is the project's or `plugins` allows it."""
    module = path.partition(":")[0]
    if any(module == package or module.startswith(f"{package}.") for package in (own_package, *plugins)):
        return
    line = f"plugins: [{', '.join([*plugins, module.partition('.')[0]])}]"
    raise ConfigurationError(
        f"{key} is {path}, but building may run code of {', '.join((own_package, *plugins))} only. If you trust that "
        f"package, let params.yaml say `{line}`."
    )


def check_module(name: str, key: str, own_package: str, plugins: Sequence[str], defines: frozenset[str]) -> None:
    """Check a user's own module that takes the place of one of the project's, without importing it.

    Args:
        name: Dotted name of the module.
        key: Configuration key of `name`, for messages.
        own_package: The project's package.
        plugins: Import prefixes that params.yaml opens.
        defines: Classes and functions that the module must define.

    Raises:
        ConfigurationError: `plugins` does not allow it, there is no such module, or it lacks one of the definitions.
    """
    check_permitted(name, key, own_package, plugins)
    path = signatures.source_file(name, key)
    if path is None:
        raise ConfigurationError(f"{key} is {name}, which is not a Python file")
    try:
        missing = components.missing_definitions(path, defines)
    except (SyntaxError, ValueError) as error:
        raise ConfigurationError(f"{key}: {name} cannot be imported: {error}") from error
    if missing:
        raise ConfigurationError(
            f"{key} is {name}, which must define {', '.join(sorted(defines))} at its top level; it lacks "
            f"{', '.join(missing)}"
        )


def parameters(path: str, key: str) -> signatures.Parameters | None:
    """Return the parameters of the class or function at `path`; None where Python cannot determine them.

    Its source text is parsed. Only where that is not sufficient (an attribute imported from elsewhere, a decorated
    function) is the module imported, with its dependencies.

    Raises:
        ConfigurationError: there is no such module or name, or it is not callable.
    """
    module, _, attribute = path.partition(":")
    accepted = signatures.parameters_in_source(module, attribute, key)
    return signatures.parameters_of(import_callable(path, key)) if accepted is None else accepted


def import_object(path: str, key: str) -> Any:
    """Import the object at `path`.

    Raises:
        ConfigurationError: the module cannot be imported or has no such name.
    """
    name, _, attribute = path.partition(":")
    try:
        with chdir("."):  # which a script that was not meant to be imported may change
            module = importlib.import_module(name)
    except Exception as error:  # importing a user's module may raise anything
        raise ConfigurationError(
            f"{key}: {name} cannot be imported: {type(error).__name__}: {error}. Install it, or put the folder that "
            "holds it on PYTHONPATH."
        ) from error
    if not hasattr(module, attribute):
        names = [name for name in vars(module) if not name.startswith("_")]
        source = getattr(module, "__file__", None)
        where = f"{name} ({source})" if source else name
        raise ConfigurationError(f"{key}: {where} has no {attribute}.{components.did_you_mean(attribute, names)}")
    return getattr(module, attribute)


def import_callable(path: str, key: str) -> Any:
    """Import the class or function at `path`.

    Raises:
        ConfigurationError: it cannot be imported or is not callable.
    """
    found = import_object(path, key)
    if not callable(found):
        raise ConfigurationError(f"{key}: {path} is a {type(found).__name__}; name a class or a function")
    return found
