"""What is wrong with a configuration, said so that it can be fixed without reading the code."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Any

from pydantic import TypeAdapter, ValidationError

from lowerdeck.config.schema import Strict
from lowerdeck.contracts.errors import ConfigurationError
from lowerdeck.registry import components

_UNSET = object()
_WORDING = {  # pydantic's words for JSON and Python, in those of YAML
    "Input should be": "has to be",
    "List should have": "has to have",
    "String should have": "has to have",
    " after validation, not 0": "",
    "a valid array": "a list",
    "an object": "a mapping",
    "a valid dictionary": "a mapping",
}


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One thing to fix."""

    key: str
    """Full dotted key, e.g. `target.options.memory_mode`."""
    message: str
    """What is wrong."""
    received: Any = _UNSET
    """The offending value, where there is one."""
    allowed: Sequence[str] = ()
    """What may stand there instead, where that is a closed list."""
    suggest_for: str | None = None
    """The name that may be a misspelling of one of `allowed`."""
    is_context_free: bool = False
    """Whether the value is of a wrong type or none of a list, and not only wrong beside other choices."""

    def __str__(self) -> str:
        lines = [f"{self.key}: {self.message}"]
        if self.received is not _UNSET:
            lines.append(f"    received: {_format_value(self.received)}")
        if self.allowed:
            lines.append(f"    allowed: {', '.join(self.allowed)}")
        guess = self.suggest_for or ""
        near = components.similar(guess, self.allowed)
        if near:  # of equally near ones the one that goes on as the guess begins
            best = next((name for name in near if guess and name.startswith(guess)), near[0])
            lines.append(f"    did you mean {best!r}?")
        return "\n".join(lines)


def raise_problems(problems: Iterable[Problem]) -> None:
    """Raise one ConfigurationError for all `problems`; nothing happens where there are none."""
    found = list(problems)
    if found:
        count = "1 problem" if len(found) == 1 else f"{len(found)} problems"
        listed = "\n".join("  " + str(problem).replace("\n", "\n  ") for problem in found)
        invalid_keys = [problem.key for problem in found if problem.is_context_free or problem.suggest_for is not None]
        raise ConfigurationError(f"{count} in the configuration, nothing was built:\n{listed}", invalid_keys)


def find_non_plain(values: Any, prefix: str = "", outer: tuple[int, ...] = ()) -> Iterator[Problem]:
    """What of `values` is no string, finite number, boolean, null, list, or mapping with strings as keys.

    Args:
        values: What YAML gave.
        prefix: Dotted key under which `values` stand.
        outer: Identities of the containers that `values` stand in: an alias of YAML can make one hold itself.
    """
    if id(values) in outer:
        yield Problem(key=prefix, message="holds itself through an alias")
    elif isinstance(values, (dict, list)):
        for name, value in values.items() if isinstance(values, dict) else enumerate(values):
            key = f"{prefix}.{name}" if prefix else str(name)
            if isinstance(values, dict) and not isinstance(name, str):
                yield Problem(key=key, message=f"a key has to be a string; this is a {type(name).__name__}")
            yield from find_non_plain(value, key, (*outer, id(values)))
    elif isinstance(values, float) and not math.isfinite(values):
        yield Problem(key=prefix, message="has to be a finite number", received=values)
    elif not isinstance(values, (str, int, float, bool, NoneType)):
        message = f"is a {type(values).__name__}; put it in quotes if a string is meant"
        yield Problem(key=prefix, message=message, received=values)


def validate(schema: type, values: Any, prefix: str = "") -> tuple[Any, list[Problem]]:
    """`values` as an instance of the dataclass `schema`, or None and all that is wrong with them.

    Args:
        schema: Frozen dataclass with annotations that pydantic understands.
        values: What YAML gave: mappings, sequences and scalars.
        prefix: Dotted key under which `values` stand.
    """
    if non_plain := list(find_non_plain(values, prefix)):
        return None, non_plain
    if not isinstance(values, dict):
        return None, [Problem(key=prefix, message="a mapping has to stand here", received=values)]
    text = json.dumps(values)
    # JSON mode takes lists for tuples and mappings for dataclasses, yet is strict about scalars.
    checked = schema if hasattr(schema, "__pydantic_config__") else _strict(schema)
    adapter: TypeAdapter[Any] = TypeAdapter(checked)
    try:
        config = adapter.validate_json(text, strict=True)
    except ValidationError as error:
        return None, [_problem(schema, details, prefix) for details in error.errors(include_url=False)]
    if checked is not schema:
        config = schema(**{field.name: getattr(config, field.name) for field in dataclasses.fields(checked)})
    return config, []


def _strict(schema: type) -> type:
    """A copy of an options dataclass with the project's strictness: plug-ins need not know pydantic.

    The original is left alone, because a process that has composed may create backends and sources from plain values.
    """
    namespace = {"__module__": schema.__module__, "__doc__": schema.__doc__}
    return dataclasses.dataclass(frozen=True, kw_only=True)(type(schema.__name__, (schema, Strict), namespace))


def _problem(schema: type, details: Any, prefix: str) -> Problem:
    location = [str(part) for part in details["loc"]]
    key = ".".join([prefix, *location] if prefix else location)
    kind = details["type"]
    if kind in ("unexpected_keyword_argument", "extra_forbidden"):
        allowed = _fields_at(schema, details["loc"][:-1])
        return Problem(
            key=key,
            message="there is no such key" if allowed else "nothing can be set here",
            received=details["input"],
            allowed=allowed,
            suggest_for=location[-1],
            is_context_free=True,
        )
    if kind in ("missing", "missing_argument", "missing_keyword_only_argument"):
        return Problem(key=key, message="is missing; give it under `overrides` in params.yaml or in the conf/ file")
    if kind == "literal_error":
        allowed = [part.strip().strip("'") for part in details["ctx"]["expected"].replace(" or ", ",").split(",")]
        received = details["input"]
        return Problem(
            key=key, message="not one of the values", received=received, allowed=allowed, suggest_for=str(received)
        )
    message = details["msg"].removeprefix("Value error, ")
    for theirs, ours in _WORDING.items():
        message = message.replace(theirs, ours)
    return Problem(key=key, message=message, received=details["input"], is_context_free=True)


def _fields_at(schema: Any, location: Sequence[str | int]) -> list[str]:
    """Names of the fields of the dataclass that stands at `location` below `schema`."""
    import typing

    for part in location:
        # A position in a list stands for the type of the list's items.
        items = typing.get_args(schema)[:1] if typing.get_origin(schema) is list else ()
        if not dataclasses.is_dataclass(schema) and not items:
            return []
        schema = items[0] if items else typing.get_type_hints(schema).get(str(part))
    return [field.name for field in dataclasses.fields(schema)] if dataclasses.is_dataclass(schema) else []


def _format_value(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 120 else text[:117] + "..."
