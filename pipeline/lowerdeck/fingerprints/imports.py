"""Which modules a module's source imports, found without importing any of them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True, kw_only=True)
class Imports:
    """What one source file refers to."""

    names: tuple[tuple[str, str], ...]
    """Module and what is imported from it: `from a import b` gives `("a", "b")`, and `import a` gives `("a", "")`."""
    strings: tuple[str, ...]
    """Texts that may name a module or a file of code: those without spaces that hold a dot."""


@cache
def imports_of(source: bytes, package: str) -> Imports:
    """What `source` imports anywhere, in functions too, but for blocks under `if TYPE_CHECKING`.

    Args:
        source: Python source.
        package: The package that relative imports start from.

    Raises:
        SyntaxError: it is no Python.
    """
    names: dict[tuple[str, str], None] = {}
    strings: dict[str, None] = {}
    for node in _executed_nodes(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= dict.fromkeys((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(node, package)
            names |= dict.fromkeys((base, alias.name) for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and _may_name_code(node.value):
            strings[node.value] = None
    return Imports(names=tuple(names), strings=tuple(strings))


def _executed_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, ast.If) and _is_type_checking(node.test):
            waiting += node.orelse
        else:
            waiting += ast.iter_child_nodes(node)


def _is_type_checking(test: ast.expr) -> bool:
    name = test.attr if isinstance(test, ast.Attribute) else test.id if isinstance(test, ast.Name) else ""
    return name == "TYPE_CHECKING"


def _absolute(node: ast.ImportFrom, package: str) -> str:
    if not node.level:
        return node.module or ""
    parts = package.split(".")
    base = ".".join(parts[: len(parts) - node.level + 1])
    return f"{base}.{node.module}" if node.module else base


def _may_name_code(text: str) -> bool:
    return "." in text and len(text) < 100 and not any(character.isspace() for character in text)
