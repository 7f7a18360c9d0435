"""Splits the condition at which a function stopped into its parts, to find the decisive one; follows calls."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import CodeType, FrameType
from typing import Any

import numpy as np

from lowerdeck.delegation.rejections.check_source import deciding_expression, function_of, message_expressions_at
from lowerdeck.delegation.rejections.values import UNKNOWN, values_in

_MAX_CALL_DEPTH = 8
_CONDITIONS = (ast.BoolOp, ast.Call, ast.Compare, ast.UnaryOp)
_OPPOSITES = ((ast.Eq, ast.NotEq), (ast.Lt, ast.GtE), (ast.Gt, ast.LtE), (ast.Is, ast.IsNot), (ast.In, ast.NotIn))
_INVERTED: dict[type[ast.cmpop], type[ast.cmpop]] = dict((*_OPPOSITES, *((right, left) for left, right in _OPPOSITES)))
_EVALUATION_ERRORS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    NameError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""Exceptions of a part of a condition that is evaluated on its own: the check may not have reached it."""


@dataclass(frozen=True, kw_only=True)
class Condition:
    """A part of a check's condition that cannot be split further."""

    text: str
    """The true condition as in the backend's source, e.g. `stride_h > kernel_h`."""
    function: str
    """The function that contains it."""
    names: frozenset[str]
    """Its identifiers, and the functions on the path to it."""
    values: Mapping[str, object]
    """The values that it compared, by name."""


@dataclass(frozen=True, kw_only=True)
class ReturnSite:
    """The line at which a function stopped, with its variables and the path of calls to it."""

    code: CodeType
    line: int
    variables: dict[str, Any]
    path: tuple[str, ...]


def deciding_conditions(site: ReturnSite) -> Iterator[Condition]:
    """Yield the conditions that led to `site`, or that made the result False."""
    found = deciding_expression(site.code, site.line)
    if found is not None:
        yield from _conditions_within(*found, site)


def message_values(site: ReturnSite) -> dict[str, object]:
    """Return the values in the f-string at the line of `site`, by name."""
    parts = message_expressions_at(site.code, site.line)
    values = [values_in(part, partial(_evaluate, variables=site.variables)) for part in parts]
    return {name: value for each in values for name, value in each.items()}


def _conditions_within(expression: ast.expr, expected: bool, site: ReturnSite) -> Iterator[Condition]:
    """The parts of `expression` that make it `expected`."""
    match expression:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield from _conditions_within(operand, not expected, site)
        case ast.NamedExpr(value=value):
            yield from _conditions_within(value, expected, site)
        case ast.BoolOp():
            for operand in _deciding_operands(expression, expected, site):
                yield from _conditions_within(operand, expected, site)
        case ast.Call(func=ast.Name(id="any" | "all"), args=[ast.GeneratorExp() as each]):
            yield from _conditions_of_items(expression, each, expected, site)
        case ast.Name(id=name):
            assigned = _assigned(name, site)
            if assigned is not None and _evaluate_bool(assigned, site.variables) is expected:
                yield from _conditions_within(assigned, expected, replace(site, line=assigned.lineno))
            else:  # not assigned from a condition, or its variables have changed since
                yield _condition(expression, expected, site)
        case ast.IfExp(test=test, body=body, orelse=otherwise):
            yield from _conditions_within(body if _evaluate_bool(test, site.variables) else otherwise, expected, site)
        case ast.Call() if len(site.path) < _MAX_CALL_DEPTH:
            inner = list(_conditions_of_call(expression, expected, site))
            yield from inner or [_condition(expression, expected, site)]
        case _:
            yield _condition(expression, expected, site)


def _deciding_operands(expression: ast.BoolOp, expected: bool, site: ReturnSite) -> Sequence[ast.expr]:
    """All operands, or the first decisive one where one is enough."""
    if isinstance(expression.op, ast.And) is expected:
        return expression.values
    return [operand for operand in expression.values if _evaluate_bool(operand, site.variables) is expected][:1]


def _conditions_of_items(
    call: ast.Call, each: ast.GeneratorExp, expected: bool, site: ReturnSite
) -> Iterator[Condition]:
    """The parts of the predicate of any() or all() for the first decisive item, if there is one."""
    assert isinstance(call.func, ast.Name)
    iterated_values = values_in(each.generators[0].iter, partial(_evaluate, variables=site.variables))
    items = list(_items(each.generators, site.variables))
    if (call.func.id == "any") is expected:
        for variables in items:
            if _evaluate_bool(each.elt, variables) is expected:
                for condition in _conditions_within(each.elt, expected, replace(site, variables=variables)):
                    yield replace(condition, values={**condition.values, **iterated_values})
                return
    values_per_item = [values_in(each.elt, partial(_evaluate, variables=variables)) for variables in items]
    names = dict.fromkeys(name for values in values_per_item for name in values)
    values_by_name = {name: [values[name] for values in values_per_item if name in values] for name in names}
    yield replace(_condition(call, expected, site), values=values_by_name)


def _conditions_of_call(call: ast.Call, expected: bool, site: ReturnSite) -> Iterator[Condition]:
    """The conditions inside the called function, where it is written in Python and has any."""
    code = code_of(_evaluate(call.func, site.variables))
    if code is None or function_of(code) is None or code.co_qualname in site.path:
        return
    answer, returned_at = call_profiled(lambda: _evaluate(call, site.variables), code)
    if returned_at is None or not isinstance(answer, bool | np.bool_) or bool(answer) is not expected:
        return
    line, variables = returned_at
    path = (*site.path, code.co_qualname)
    within = ReturnSite(code=code, line=line, variables=variables, path=path)
    found = deciding_expression(code, line, answer=expected)
    if found is not None:
        yield from _conditions_within(*found, within)


def _condition(expression: ast.expr, holds: bool, site: ReturnSite) -> Condition:
    named = {node.id for node in ast.walk(expression) if isinstance(node, ast.Name)}
    named |= {node.attr for node in ast.walk(expression) if isinstance(node, ast.Attribute)}
    return Condition(
        text=_text(expression, holds),
        function=site.code.co_name,
        names=frozenset(named | {name.rpartition(".")[2] for name in site.path}),
        values=values_in(expression, lambda part: _evaluate(part, site.variables)),
    )


def _text(expression: ast.expr, holds: bool) -> str:
    if holds:
        return ast.unparse(expression)
    if isinstance(expression, ast.Compare) and len(expression.ops) == 1:
        inverted = _INVERTED[type(expression.ops[0])]()
        return ast.unparse(ast.Compare(left=expression.left, ops=[inverted], comparators=expression.comparators))
    return f"not {ast.unparse(expression)}" if isinstance(expression, ast.Call) else f"not ({ast.unparse(expression)})"


def _assigned(name: str, site: ReturnSite) -> ast.expr | None:
    """The condition last assigned to the variable `name` before the line of `site`, if any."""
    function = function_of(site.code)
    found: ast.expr | None = None
    for statement in ast.walk(function) if function else ():
        match statement:
            case ast.Assign(value=ast.Call(func=ast.Name(id="cast"))):
                continue  # only for type checkers
            case (
                ast.Assign(targets=[ast.Name(id=target)], value=value)
                | ast.AnnAssign(target=ast.Name(id=target), value=ast.expr() as value)
            ) if target == name:
                if statement.lineno < site.line and (found is None or statement.lineno > found.lineno):
                    found = value
    return found if isinstance(found, _CONDITIONS) else None


def _items(generators: Sequence[ast.comprehension], variables: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The variables of a generator expression for each item."""
    if not generators:
        yield variables
        return
    first, *others = generators
    items = _evaluate(first.iter, variables)
    for item in () if items is UNKNOWN else items:
        bound = dict(variables)
        _bind(first.target, item, bound)
        if all(_evaluate_bool(test, bound) for test in first.ifs):
            yield from _items(others, bound)


def _bind(target: ast.expr, value: Any, variables: dict[str, Any]) -> None:
    if isinstance(target, ast.Name):
        variables[target.id] = value
    elif isinstance(target, ast.Tuple):
        for part, item in zip(target.elts, value, strict=False):
            _bind(part, item, variables)


def _evaluate_bool(expression: ast.expr, variables: Mapping[str, Any]) -> bool | None:
    value = _evaluate(expression, variables)
    try:
        return None if value is UNKNOWN else bool(value)
    except _EVALUATION_ERRORS:
        return None


def _evaluate(expression: ast.expr, variables: Mapping[str, Any]) -> Any:
    """Evaluate a part of the backend's source with these variables; UNKNOWN where it fails."""
    try:
        compiled = compile(ast.Expression(body=expression), "<condition>", "eval")
        return eval(compiled, dict(variables))  # noqa: S307  installed code that has just been executed
    except _EVALUATION_ERRORS:
        return UNKNOWN


def call_profiled(call: Callable[[], Any], code: CodeType) -> tuple[Any, tuple[int, dict[str, Any]] | None]:
    """Return the result of `call`, and the line and variables at which its first call of `code` returned."""
    returned_at: list[tuple[int, dict[str, Any]]] = []
    open_calls = 0

    def profile(frame: FrameType, event: str, _: Any) -> None:
        nonlocal open_calls
        if frame.f_code is not code or event not in ("call", "return"):
            return
        open_calls += 1 if event == "call" else -1
        if event == "return" and not open_calls and not returned_at:
            returned_at.append((frame.f_lineno, variables_of(frame)))

    before: Any = sys.getprofile()
    sys.setprofile(profile)
    try:
        answer = call()
    finally:
        if hasattr(before, "enable"):  # cProfile sets a function of C, and gets its object back
            sys.setprofile(None)
            before.enable()
        else:
            sys.setprofile(before)
    return answer, returned_at[0] if returned_at else None


def variables_of(frame: FrameType) -> dict[str, Any]:
    """Return all names visible at `frame`."""
    return {**frame.f_globals, **frame.f_locals}


def code_of(function: Any) -> CodeType | None:
    """Return the code of `function`; None where it is not written in Python."""
    function = getattr(function, "__func__", function)
    found = getattr(function, "__code__", None)
    return found if isinstance(found, CodeType) else None
