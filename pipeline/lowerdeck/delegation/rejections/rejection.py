"""Finds which condition of a backend's check refused a node, and with which values.

The check itself only returns False. Run under a profiler, it shows at which line and with which variables it returned.
The source of that line, or of the enclosing `if`, is the condition; evaluating its parts with those variables shows
which one decided, and calls of other functions of the backend are followed. This needs no list of converters or
checks, and parses no messages of the backend. ADR 0027 has the reasons.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Any

from lowerdeck.contracts.plan import Reason, ReasonCode
from lowerdeck.delegation.rejections.check_source import comment_at
from lowerdeck.delegation.rejections.conditions import (
    Condition,
    ReturnSite,
    call_profiled,
    code_of,
    deciding_conditions,
    message_values,
    variables_of,
)

_DYNAMIC = re.compile(r"(?i).*(symbolic|symint|symbool|well_defined_shape|unresolved).*")
_STATIC = re.compile(r".*static.*")
_NUMBER_FORMAT = re.compile(r"(?i).*(quant|q_?params|dtype|int8|int32|int64|zero_point).*|.*_(zp|types?)")
_SHAPE = re.compile(r".*(shape|rank|broadcast).*|(.*_)?channels|(input|output|batch|flat_input|flat_output)_size|size")
"""Identifiers in the conditions of all backends' checks, by the subject of the condition."""
_SYMBOL = re.compile(r"(^|[^\w.])[su]\d+($|[^\w.])")
_DTYPES = re.compile(r"(u?int|float|bfloat|complex)\d+\w*|bool")


@dataclass(frozen=True, kw_only=True)
class Rejection:
    """Why a check refused a node."""

    function: str
    """The called function, e.g. `ConvolutionConverter._is_supported_on_target`."""
    conditions: tuple[Condition, ...]
    """The conditions that together decided; empty where the source shows none."""
    comment: str = ""
    """The comment at it in the backend's source; may be empty."""
    message_values: Mapping[str, object] = field(default_factory=dict)
    """The values in the check's message, if it has one."""

    @property
    def message(self) -> str:
        """`The Neutron IR MaxPool2D does not support dilation: dilation != (1, 1) with dilation=[2, 2]`."""
        texts = dict.fromkeys(self._text(condition) for condition in self.conditions)
        condition_text = " and ".join(texts)
        listed = ", ".join(f"{name}={_format_value(value)}" for name, value in self.values.items())
        comparison = f"{condition_text} with {listed}" if condition_text and listed else condition_text
        return ": ".join(part for part in (self.comment.rstrip(".:"), comparison) if part) or f"{self.function} says no"

    @property
    def values(self) -> dict[str, object]:
        """The values in the check's message and in all conditions, by name."""
        compared = {name: value for condition in self.conditions for name, value in condition.values.items()}
        return {**self.message_values, **compared}

    @property
    def names(self) -> frozenset[str]:
        """Identifiers in all conditions."""
        return frozenset().union(*(condition.names for condition in self.conditions))

    def reason(self, check: str, otherwise: ReasonCode) -> Reason:
        """Convert to the reason of a node; the code follows from the compared values, or is `otherwise`.

        Args:
            check: Name of the check for the reason.
            otherwise: `constraint`, which becomes `shape` where sizes decided, or any other code.
        """
        return Reason(code=self._code(otherwise), message=self.message, check=check, values=self.values)

    def _code(self, otherwise: ReasonCode) -> ReasonCode:
        if self._names(_DYNAMIC) or any(_is_symbol(value) for value in self.values.values()):
            return ReasonCode.DYNAMIC_SHAPE
        if self._names(_STATIC):
            return ReasonCode.NOT_CONSTANT
        if self._names(_NUMBER_FORMAT) or any(_is_dtype(value) for value in self.values.values()):
            return ReasonCode.NOT_QUANTIZED if None in self.values.values() else ReasonCode.DTYPE
        if otherwise is ReasonCode.CONSTRAINT and self._names(_SHAPE):
            return ReasonCode.SHAPE
        return otherwise

    def _names(self, kind: re.Pattern[str]) -> bool:
        return any(kind.fullmatch(name) for name in self.names)

    def _text(self, condition: Condition) -> str:
        function = condition.function
        return condition.text if self.function.endswith(function) else f"{function}: {condition.text}"


def explain_rejection(check: Callable[..., object], *arguments: Any) -> Rejection | None:
    """Run `check` and explain why it refuses; None if it does not.

    Args:
        check: A function or method of a backend without side effects.
        arguments: Arguments of the call.
    """
    code = code_of(check)
    assert code is not None, f"{check!r} is not written in Python"
    answer, returned_at = call_profiled(lambda: check(*arguments), code)
    if answer:
        return None
    if returned_at is None:
        return Rejection(function=code.co_qualname, conditions=())
    line, variables = returned_at
    return _explain(ReturnSite(code=code, line=line, variables=variables, path=()))


def explain_rejection_at(frame: FrameType) -> Rejection:
    """Explain what led a check to the line of `frame`, where it reports a refusal."""
    site = ReturnSite(code=frame.f_code, line=frame.f_lineno, variables=variables_of(frame), path=())
    rejection = _explain(site)
    with suppress(Exception):
        rejection = replace(rejection, message_values=message_values(site))
    return rejection


def _explain(site: ReturnSite) -> Rejection:
    comment = comment_at(site.code, site.line)
    conditions: tuple[Condition, ...] = ()
    # Parts of other people's source are evaluated here: whatever that raises must not end a build.
    with suppress(Exception):
        conditions = tuple(deciding_conditions(site))
    return Rejection(function=site.code.co_qualname, conditions=conditions, comment=comment)


def _is_dtype(value: object) -> bool:
    return isinstance(value, str) and _DTYPES.fullmatch(value) is not None


def _is_symbol(value: object) -> bool:
    if isinstance(value, list):
        return any(map(_is_symbol, value))
    return isinstance(value, str) and _SYMBOL.search(value) is not None


def _format_value(value: object) -> str:
    return f"[{', '.join(map(_format_value, value))}]" if isinstance(value, list) else str(value)
