"""Finds the condition that led to a line, in the source of a backend's check."""

from __future__ import annotations

import ast
import functools
import linecache
from collections.abc import Iterator, Sequence
from types import CodeType

_Block = tuple[ast.stmt | None, ast.stmt, Sequence[ast.stmt]]
"""The owner of a block, the statement in the block that contains a line, and the block."""


@functools.cache
def _parsed(filename: str) -> ast.Module | None:
    source = "".join(linecache.getlines(filename))
    return ast.parse(source) if source else None


@functools.cache
def function_of(code: CodeType) -> ast.FunctionDef | None:
    """Return the syntax tree of `code`; None where its source is not available."""
    module = _parsed(code.co_filename)
    for node in ast.walk(module) if module else ():
        if isinstance(node, ast.FunctionDef) and node.name == code.co_name:
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            if first == code.co_firstlineno:
                return node
    return None


def deciding_expression(code: CodeType, line: int, *, answer: bool = False) -> tuple[ast.expr, bool] | None:
    """Return the condition that led `code` to `line`, and its value; None where there is none.

    Where `line` returns an expression, return that expression with the value `answer`.
    """
    blocks = _blocks_at(code, line)
    statement = blocks[-1][1] if blocks else None
    if isinstance(statement, ast.Return) and not isinstance(statement.value, ast.Constant | None):
        return statement.value, answer
    for owner, inner, block in reversed(blocks):
        for earlier in reversed([each for each in block if each.lineno < inner.lineno]):
            if isinstance(earlier, ast.If) and _returns_opposite(earlier, answer):
                return earlier.test, False  # if true, it would have returned the opposite
        if isinstance(owner, ast.If):
            return owner.test, block is owner.body
    return None


def _returns_opposite(statement: ast.If, answer: bool) -> bool:
    last = statement.body[-1]
    return isinstance(last, ast.Return) and not (
        isinstance(last.value, ast.Constant) and bool(last.value.value) is answer
    )


def message_expressions_at(code: CodeType, line: int) -> list[ast.expr]:
    """Return the expressions in the f-string at `line` of `code`."""
    blocks = _blocks_at(code, line)
    return [node.value for node in ast.walk(blocks[-1][1]) if isinstance(node, ast.FormattedValue)] if blocks else []


def _blocks_at(code: CodeType, line: int) -> list[_Block]:
    function = function_of(code)
    return list(_blocks(function.body, line)) if function else []


def _blocks(body: list[ast.stmt] | Sequence[ast.stmt], line: int, owner: ast.stmt | None = None) -> Iterator[_Block]:
    """The blocks around `line`, from the outermost inwards."""
    for statement in body:
        if statement.lineno <= line <= (statement.end_lineno or line):
            yield owner, statement, body
            if not isinstance(statement, ast.FunctionDef | ast.ClassDef):
                for field in ("body", "orelse", "finalbody", "handlers"):
                    yield from _blocks(getattr(statement, field, []), line, statement)
                for case in getattr(statement, "cases", []):
                    yield from _blocks(case.body, line, statement)


def comment_at(code: CodeType, line: int) -> str:
    """Return the comment above `line` of `code`, within the enclosing `if`."""
    owners = [owner for owner, _, _ in _blocks_at(code, line) if isinstance(owner, ast.If)]
    if not owners:
        return ""
    lines = linecache.getlines(code.co_filename)[owners[-1].test.lineno : line]
    texts = [text.strip().removeprefix("#").strip() for text in lines if text.strip().startswith("#")]
    return " ".join(texts)
