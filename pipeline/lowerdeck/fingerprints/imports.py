"""Finds the modules that a source file imports, without importing them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import resolve_name


@dataclass(frozen=True, kw_only=True)
class Imports:
    """References of one source file."""

    names: tuple[tuple[str, str], ...]
    """Module and imported name: `("a", "b")` for `from a import b`, and `("a", "")` for `import a`."""
    strings: tuple[str, ...]
    """Strings that may name a module or a source file: those with a dot and without spaces."""


@cache
def imports_of(source: bytes, package: str) -> Imports:
    """Imports anywhere in `source`, including functions, except below `if TYPE_CHECKING`.

    Args:
        source: Python source.
        package: The package that relative imports start from.

    Raises:
        SyntaxError: `source` is not valid Python.
    """
    names: dict[tuple[str, str], None] = {}
    strings: dict[str, None] = {}
    for node in _executed_nodes(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= dict.fromkeys((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = resolve_name("." * node.level + (node.module or ""), package)
            names |= dict.fromkeys((base, alias.name) for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and _may_name_code(node.value):
            strings[node.value] = None
    return Imports(names=tuple(names), strings=tuple(strings))


def _executed_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and _is_type_checking(node.test):
            waiting += node.orelse
            continue
        yield node
        for field in node._fields:
            value = getattr(node, field)
            if isinstance(value, ast.AST):
                waiting.append(value)
            elif isinstance(value, list):
                waiting += (part for part in value if isinstance(part, ast.AST))


def _is_type_checking(test: ast.expr) -> bool:
    name = test.attr if isinstance(test, ast.Attribute) else test.id if isinstance(test, ast.Name) else ""
    return name == "TYPE_CHECKING"


def _may_name_code(text: str) -> bool:
    return "." in text and len(text) < 100 and not any(character.isspace() for character in text)
