"""Takes the conditions of a function apart, to find the part that decided.

The source of the line at which a function stopped, or of the `if` around it, is the condition. Evaluated piece by piece
with the variables of the function it shows which part of it decided; a call of another function is followed into that.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import CodeType, FrameType
from typing import Any

import numpy as np

from lowerdeck.delegation.rejections.check_source import deciding, function_of, told_at
from lowerdeck.delegation.rejections.values import UNKNOWN, values_in

_DEEPEST = 8
"""Calls that are followed at most, each within the one before."""
_CONDITIONS = (ast.BoolOp, ast.Call, ast.Compare, ast.UnaryOp)
_INVERTED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.GtE,
    ast.GtE: ast.Lt,
    ast.Gt: ast.LtE,
    ast.LtE: ast.Gt,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_UNANSWERABLE = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    NameError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What a piece of a condition may raise that is evaluated by itself: the whole was not evaluated up to there."""


@dataclass(frozen=True, kw_only=True)
class Condition:
    """A condition in a check that could not be taken apart further."""

    text: str
    """As it holds, in the backend's own source: `stride_h > kernel_h`."""
    function: str
    """The function that it stands in."""
    names: frozenset[str]
    """Identifiers in it, and the functions that led to it."""
    values: Mapping[str, object]
    """What it compared, by name."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """A line of a function where it stopped, with its variables, and the functions through which it was reached."""

    code: CodeType
    line: int
    variables: dict[str, Any]
    path: tuple[str, ...]


def decided(place: Place) -> Iterator[Condition]:
    """The conditions by which the function of `place` got there, or by which what it returned there is False."""
    found = deciding(place.code, place.line)
    if found is not None:
        yield from _parts(*found, place)


def told(place: Place) -> dict[str, object]:
    """What the message that is made at the line of `place` has in it, by name."""
    parts = told_at(place.code, place.line)
    values = [values_in(part, partial(_value, variables=place.variables)) for part in parts]
    return {name: value for each in values for name, value in each.items()}


def _parts(expression: ast.expr, wanted: bool, place: Place) -> Iterator[Condition]:
    """The parts of `expression` that make it `wanted`."""
    match expression:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield from _parts(operand, not wanted, place)
        case ast.NamedExpr(value=value):
            yield from _parts(value, wanted, place)
        case ast.BoolOp():
            for operand in _deciding_operands(expression, wanted, place):
                yield from _parts(operand, wanted, place)
        case ast.Call(func=ast.Name(id="any" | "all"), args=[ast.GeneratorExp() as each]):
            yield from _of_items(expression, each, wanted, place)
        case ast.Name(id=name):
            assigned = _assigned(name, place)
            if assigned is not None and _truth(assigned, place.variables) is wanted:
                yield from _parts(assigned, wanted, replace(place, line=assigned.lineno))
            else:  # it was set to no condition, or what that was computed from has changed
                yield _condition(expression, wanted, place)
        case ast.IfExp(test=test, body=body, orelse=otherwise):
            yield from _parts(body if _truth(test, place.variables) else otherwise, wanted, place)
        case ast.Call() if len(place.path) < _DEEPEST:
            inner = list(_inside(expression, wanted, place))
            yield from inner or [_condition(expression, wanted, place)]
        case _:
            yield _condition(expression, wanted, place)


def _deciding_operands(expression: ast.BoolOp, wanted: bool, place: Place) -> Sequence[ast.expr]:
    """All operands, or where one is enough the first that is so."""
    if isinstance(expression.op, ast.And) is wanted:
        return expression.values
    return [operand for operand in expression.values if _truth(operand, place.variables) is wanted][:1]


def _of_items(call: ast.Call, each: ast.GeneratorExp, wanted: bool, place: Place) -> Iterator[Condition]:
    """The parts of what any() or all() asks of the first item that decided, where one did."""
    assert isinstance(call.func, ast.Name)
    taken_from = values_in(each.generators[0].iter, partial(_value, variables=place.variables))
    items = list(_items(each.generators, place.variables))
    if (call.func.id == "any") is wanted:
        for variables in items:
            if _truth(each.elt, variables) is wanted:
                for condition in _parts(each.elt, wanted, replace(place, variables=variables)):
                    yield replace(condition, values={**condition.values, **taken_from})
                return
    of_each = [values_in(each.elt, partial(_value, variables=variables)) for variables in items]
    names = dict.fromkeys(name for values in of_each for name in values)
    together = {name: [values[name] for values in of_each if name in values] for name in names}
    yield replace(_condition(call, wanted, place), values=together)


def _inside(call: ast.Call, wanted: bool, place: Place) -> Iterator[Condition]:
    """The conditions in the function that `call` calls, where that is Python that answers by conditions of its own."""
    code = code_of(_value(call.func, place.variables))
    if code is None or function_of(code) is None or code.co_qualname in place.path:
        return
    answer, stopped = profiled(lambda: _value(call, place.variables), code)
    if stopped is None or not isinstance(answer, bool | np.bool_) or bool(answer) is not wanted:
        return
    line, variables = stopped
    path = (*place.path, code.co_qualname)
    within = Place(code=code, line=line, variables=variables, path=path)
    found = deciding(code, line, answer=wanted)
    if found is not None:
        yield from _parts(*found, within)


def _condition(expression: ast.expr, holds: bool, place: Place) -> Condition:
    named = {node.id for node in ast.walk(expression) if isinstance(node, ast.Name)}
    named |= {node.attr for node in ast.walk(expression) if isinstance(node, ast.Attribute)}
    return Condition(
        text=_text(expression, holds),
        function=place.code.co_name,
        names=frozenset(named | {name.rpartition(".")[2] for name in place.path}),
        values=values_in(expression, lambda part: _value(part, place.variables)),
    )


def _text(expression: ast.expr, holds: bool) -> str:
    if holds:
        return ast.unparse(expression)
    if isinstance(expression, ast.Compare) and len(expression.ops) == 1:
        inverted = _INVERTED[type(expression.ops[0])]()
        return ast.unparse(ast.Compare(left=expression.left, ops=[inverted], comparators=expression.comparators))
    return f"not {ast.unparse(expression)}" if isinstance(expression, ast.Call) else f"not ({ast.unparse(expression)})"


def _assigned(name: str, place: Place) -> ast.expr | None:
    """The condition that the variable `name` was last set to before the line of `place`, where it was set to one."""
    function = function_of(place.code)
    found: ast.expr | None = None
    for statement in ast.walk(function) if function else ():
        match statement:
            case ast.Assign(value=ast.Call(func=ast.Name(id="cast"))):
                continue  # that only tells type checkers what the value is
            case (
                ast.Assign(targets=[ast.Name(id=target)], value=value)
                | ast.AnnAssign(target=ast.Name(id=target), value=ast.expr() as value)
            ) if target == name:
                if statement.lineno < place.line and (found is None or statement.lineno > found.lineno):
                    found = value
    return found if isinstance(found, _CONDITIONS) else None


def _items(generators: Sequence[ast.comprehension], variables: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The variables of a generator expression, one item after the other."""
    if not generators:
        yield variables
        return
    first, *others = generators
    items = _value(first.iter, variables)
    for item in () if items is UNKNOWN else items:
        bound = dict(variables)
        _bind(first.target, item, bound)
        if all(_truth(test, bound) for test in first.ifs):
            yield from _items(others, bound)


def _bind(target: ast.expr, value: Any, variables: dict[str, Any]) -> None:
    if isinstance(target, ast.Name):
        variables[target.id] = value
    elif isinstance(target, ast.Tuple):
        for part, item in zip(target.elts, value, strict=False):
            _bind(part, item, variables)


def _truth(expression: ast.expr, variables: Mapping[str, Any]) -> bool | None:
    value = _value(expression, variables)
    try:
        return None if value is UNKNOWN else bool(value)
    except _UNANSWERABLE:
        return None


def _value(expression: ast.expr, variables: Mapping[str, Any]) -> Any:
    """What a piece of the backend's own source gives with these variables, or UNKNOWN."""
    try:
        compiled = compile(ast.Expression(body=expression), "<condition>", "eval")
        return eval(compiled, dict(variables))  # noqa: S307  installed source, which has just been run as it stands
    except _UNANSWERABLE:
        return UNKNOWN


def profiled(ask: Callable[[], Any], code: CodeType) -> tuple[Any, tuple[int, dict[str, Any]] | None]:
    """What `ask` answers, and the line and variables at which the first call of `code` in it returned."""
    stopped: list[tuple[int, dict[str, Any]]] = []
    open_calls = 0

    def profile(frame: FrameType, event: str, _: Any) -> None:
        nonlocal open_calls
        if frame.f_code is not code or event not in ("call", "return"):
            return
        open_calls += 1 if event == "call" else -1
        if event == "return" and not open_calls and not stopped:
            stopped.append((frame.f_lineno, variables_of(frame)))

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        answer = ask()
    finally:
        sys.setprofile(before)
    return answer, stopped[0] if stopped else None


def variables_of(frame: FrameType) -> dict[str, Any]:
    """All that a name means where `frame` stands."""
    return {**frame.f_globals, **frame.f_locals}


def code_of(function: Any) -> CodeType | None:
    """The code that `function` runs, None where that is not Python's."""
    function = getattr(function, "__func__", function)
    found = getattr(function, "__code__", None)
    return found if isinstance(found, CodeType) else None
