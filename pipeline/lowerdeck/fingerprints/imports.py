"""Finds the modules that a source file imports, without importing them.

Parsing all code takes a second, so what was found is kept beside the modules' own bytecode, by the digest of each
source: an edited file has another one.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from lowerdeck.fingerprints.digests import bytes_digest, file_digest

_MAX_KEPT = 2000
"""Sources, of about 1 KB each, beyond which only those of the last process are kept: most others were edited since."""
_LEAVES = frozenset(
    {ast.Name, ast.alias, ast.Pass, ast.Break, ast.Continue, ast.Global, ast.Nonlocal}.union(
        *(kind.__subclasses__() for kind in (ast.expr_context, ast.operator, ast.boolop, ast.unaryop, ast.cmpop))
    )
)
"""Kinds of nodes below which nothing is executed; most nodes are of these."""


@dataclass(frozen=True, kw_only=True)
class Imports:
    """References of one source file."""

    names: tuple[tuple[str, str], ...]
    """Module and imported name: `("a", "b")` for `from a import b`, and `("a", "")` for `import a`."""
    strings: tuple[str, ...]
    """Strings that may name a module, a source file or a folder of these: with a dot or a slash, without spaces."""


@cache
def imports_of(source: bytes, package: str) -> Imports:
    """Imports anywhere in `source`, including functions, except below `if TYPE_CHECKING`.

    Args:
        source: Python source.
        package: The package that relative imports start from; those that leave it fail in Python, too, and are left
            out: a module that is also executed as a script tries one first.

    Raises:
        SyntaxError: `source` is not valid Python.
    """
    found = KEPT.imports(source)
    names: dict[tuple[str, str], None] = {}
    for base, name in found.names:
        with suppress(ImportError):
            names[importlib.util.resolve_name(base, package), name] = None
    return Imports(names=tuple(names), strings=found.strings)


class KeptImports:
    """Imports by the digest of their source, in a file that other processes read and replace, too.

    A file that is damaged, or was written by another version of this module or of Python, is as good as none.
    """

    def __init__(self, file: Path) -> None:
        """Use `file`, which is read when it is first needed."""
        self.file = file
        self._kept: dict[str, Imports] | None = None
        self._used: dict[str, Imports] = {}

    def imports(self, source: bytes) -> Imports:
        """Imports in `source`, relative ones with their dots, as for `imports_of`."""
        if self._kept is None:
            self._kept = self._read()
        digest = bytes_digest(source)
        self._used[digest] = found = self._kept.get(digest) or _parsed(source)
        return found

    def write(self) -> None:
        """Write what is new into the file, unless Python itself is not to write bytecode."""
        kept = self._kept or {}
        if sys.dont_write_bytecode or self._used.keys() <= kept.keys():
            return
        every = kept | self._used
        self._kept = every if len(every) <= _MAX_KEPT else dict(self._used)
        values = {digest: [found.names, found.strings] for digest, found in self._kept.items()}
        body = json.dumps(values, separators=(",", ":")).encode()
        # Not `artifacts.files`, which this layer may not import; what cannot be written is parsed again.
        temporary = self.file.with_name(f".{self.file.name}.{os.urandom(6).hex()}")
        with suppress(OSError):
            self.file.parent.mkdir(parents=True, exist_ok=True)
            try:
                temporary.write_bytes(f"{_stamp(body)}\n".encode() + body)
                temporary.replace(self.file)
            finally:
                temporary.unlink(missing_ok=True)

    def _read(self) -> dict[str, Imports]:
        with suppress(OSError):
            stamp, _, body = self.file.read_bytes().partition(b"\n")
            if stamp == _stamp(body).encode():
                return {
                    digest: Imports(names=tuple((base, name) for base, name in names), strings=tuple(strings))
                    for digest, (names, strings) in json.loads(body).items()
                }
        return {}


KEPT = KeptImports(Path(importlib.util.cache_from_source(str(Path(__file__).with_name("kept-imports.py")))))
"""In the `__pycache__` of this package, where all workspaces that use it share them."""


def _stamp(body: bytes) -> str:
    """Digest of `body` and of what decides it besides the sources: Python's grammar and this module."""
    return bytes_digest(f"{sys.version} {file_digest(Path(__file__))} ".encode() + body)


def _parsed(source: bytes) -> Imports:
    names: dict[tuple[str, str], None] = {}
    strings: dict[str, None] = {}
    for node in _executed_nodes(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= dict.fromkeys((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            names |= dict.fromkeys((base, alias.name) for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and _may_name_code(node.value):
            strings[node.value] = None
    return Imports(names=tuple(names), strings=tuple(strings))


def _executed_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Nodes of `tree` that may refer to code, except below `if TYPE_CHECKING`."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and _is_type_checking(node.test):
            waiting += node.orelse
            continue
        yield node
        for value in vars(node).values():
            if isinstance(value, list):
                waiting += (part for part in value if isinstance(part, ast.AST) and type(part) not in _LEAVES)
            elif isinstance(value, ast.AST) and type(value) not in _LEAVES:
                waiting.append(value)


def _is_type_checking(test: ast.expr) -> bool:
    name = test.attr if isinstance(test, ast.Attribute) else test.id if isinstance(test, ast.Name) else ""
    return name == "TYPE_CHECKING"


def _may_name_code(text: str) -> bool:
    has_parts = "." in text or "/" in text
    return has_parts and len(text) < 100 and not any(character.isspace() for character in text)
