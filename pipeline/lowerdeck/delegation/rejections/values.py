"""The values that a condition of a backend's check compares, in a form that a plan can store."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

_MAX_ITEMS = 16
"""Maximum length of a stored list."""
UNKNOWN = object()
"""Placeholder for a value that is not known or that a plan cannot store."""
_PREDICATES = ("all", "any", "hasattr", "isinstance", "list", "tuple")
"""Builtins whose arguments are more informative than their results."""

_NAMESPACES = ("exir_ops", "np", "torch")
"""Roots of names with a global meaning."""


def values_in(condition: ast.expr, value_of: Callable[[ast.expr], Any]) -> dict[str, object]:
    """Return the values that `condition` compares: variables, attributes and calls, by their names in the source.

    Args:
        condition: Part of a check.
        value_of: Evaluates a part of it.
    """
    found: dict[str, object] = {}
    for part in _compared(condition):
        value = plain(value_of(part))
        if value is UNKNOWN or (isinstance(part, ast.Call) and isinstance(value, bool)):
            continue
        name = _name(part, value_of)
        if name in found and found[name] != value:
            name = ast.unparse(part)
        found[name] = value
    return found


def plain(value: Any) -> object:
    """Convert `value` to numbers, strings and lists of these; UNKNOWN where that is not possible."""
    match value:
        case torch.SymInt():
            return str(value)
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case np.generic():
            return plain(value.item())
        case torch.dtype():
            return str(value).removeprefix("torch.")
        case torch.fx.Node():
            return value.name
        case torch.Tensor():
            return f"{str(value.dtype).removeprefix('torch.')}{list(map(plain, value.shape))}"
        case list() | tuple() | set() | frozenset() if len(value) <= _MAX_ITEMS:
            items = [plain(item) for item in (value if isinstance(value, Sequence) else sorted(value, key=str))]
            return UNKNOWN if any(item is UNKNOWN for item in items) else items
    operator = getattr(value, "_op", value)
    return str(operator) if isinstance(operator, torch._ops.OpOverload) else UNKNOWN


def _compared(expression: ast.expr) -> Iterator[ast.expr]:
    """The parts of `expression` with informative names and values."""
    match expression:
        case ast.Constant() | ast.Lambda() | ast.Name(id="node"):
            return
        case ast.Name() | ast.Attribute() | ast.Subscript():
            if _root(expression) not in _NAMESPACES and not getattr(expression, "attr", "").isupper():
                yield expression
        case ast.NamedExpr(value=value):
            yield expression
            yield from (part for part in _compared(value) if isinstance(part, ast.Name))
        case ast.Call():
            yield from _in_call(expression)
        case ast.GeneratorExp(generators=generators) | ast.ListComp(generators=generators):
            for each in generators:
                yield from _compared(each.iter)
        case _:
            for child in ast.iter_child_nodes(expression):
                if isinstance(child, ast.expr):
                    yield from _compared(child)


def _root(expression: ast.expr) -> str:
    """The variable at the root of a chain of attributes and items."""
    while isinstance(expression, ast.Attribute | ast.Subscript):
        expression = expression.value
    return expression.id if isinstance(expression, ast.Name) else ""


def _in_call(call: ast.Call) -> Iterator[ast.expr]:
    """The result of a call and its variable arguments, without constant arguments."""
    if isinstance(call.func, ast.Name) and call.func.id in _PREDICATES:
        for argument in call.args:
            yield from _compared(argument)
        return
    yield call
    for argument in call.args:
        if isinstance(argument, ast.Name) and not argument.id.isupper():
            yield from _compared(argument)


def _name(part: ast.expr, value_of: Callable[[ast.expr], Any]) -> str:
    """The name of `part`; the operator's schema names arguments of an operator."""
    match part:
        case ast.Subscript(value=ast.Attribute(value=owner, attr="args"), slice=ast.Constant(value=int(index))):
            node = value_of(owner)
            schema = getattr(getattr(node, "target", None), "_schema", None)
            if schema is not None and index < len(schema.arguments):
                return str(schema.arguments[index].name)
        case ast.Call(func=ast.Attribute(attr="get"), args=[ast.Constant(value=str(key)), *_]):
            return key
        case ast.Attribute(attr=name) | ast.NamedExpr(target=ast.Name(id=name)):
            return name
    return ast.unparse(part)
