"""Problems in a configuration, described so that users can fix them without reading the code."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import NoneType
from typing import Any

from pydantic import TypeAdapter, ValidationError

from lowerdeck.compat.pydantic import without_plugins
from lowerdeck.config.schema import Strict
from lowerdeck.contracts.errors import ConfigurationError
from lowerdeck.registry import components

_UNSET = object()
_WORDING = {  # pydantic's terms for JSON and Python -> terms of YAML
    "Input should be": "has to be",
    "List should have": "has to have",
    "String should have": "has to have",
    " after validation, not 0": "",
    "a valid array": "a list",
    "an object": "a mapping",
    "a valid dictionary": "a mapping",
}


@dataclass(frozen=True)
class Problem:
    """One thing to fix."""

    key: str
    """Full dotted key, e.g. `target.options.memory_mode`."""
    message: str
    received: Any = _UNSET
    """The offending value, if any."""
    allowed: Sequence[str] = ()
    """All valid values, if they form a closed list."""
    suggest_for: str | None = None
    """A name that may be a misspelling of one of `allowed`."""
    is_context_free: bool = False
    """Whether the value is wrong whatever else is chosen, e.g. of the wrong type."""

    def __str__(self) -> str:
        names_key = self.message.startswith((f"{self.key}: ", f"{self.key} "))
        lines = [self.message if names_key else f"{self.key}: {self.message}"]
        if self.received is not _UNSET:
            lines.append(f"    received: {_format_value(self.received)}")
        if self.allowed:
            lines.append(f"    allowed: {', '.join(self.allowed)}")
        guess = self.suggest_for or ""
        if near := components.similar(guess, self.allowed):  # prefers a name that the guess abbreviates
            best = next((name for name in near if guess and name.startswith(guess)), near[0])
            lines.append(f"    did you mean {best!r}?")
        return "\n".join(lines)


def unknown(key: str, message: str, received: Any, allowed: Sequence[str]) -> Problem:
    """The problem of a name that is not in `allowed` and may be a misspelling."""
    return Problem(key, message, received, allowed, suggest_for=str(received))


def raise_problems(problems: Iterable[Problem]) -> None:
    """Raise one ConfigurationError that lists all `problems`, if there are any."""
    found = list(problems)
    if found:
        count = "1 problem" if len(found) == 1 else f"{len(found)} problems"
        listed = "\n".join("  " + str(problem).replace("\n", "\n  ") for problem in found)
        invalid_keys = [problem.key for problem in found if problem.is_context_free or problem.suggest_for is not None]
        raise ConfigurationError(f"{count} in the configuration:\n{listed}", invalid_keys)


def find_non_plain(values: Any, prefix: str = "", outer: tuple[int, ...] = ()) -> Iterator[Problem]:
    """Problems with values other than strings, finite numbers, booleans, null, lists and mappings with string keys.

    Args:
        values: Loaded from YAML.
        prefix: Dotted key of `values`.
        outer: Identities of the containers around `values`: through an alias, a YAML container can contain itself.
    """
    if id(values) in outer:
        yield Problem(prefix, "contains itself through an alias")
    elif isinstance(values, (dict, list)):
        for name, value in values.items() if isinstance(values, dict) else enumerate(values):
            key = f"{prefix}.{name}" if prefix else str(name)
            if isinstance(values, dict) and not isinstance(name, str):
                yield Problem(key, f"a key has to be a string; this is a {type(name).__name__}")
            elif isinstance(name, str) and (problem := _text_problem(name)):
                yield Problem(key, f"this key {problem}")
            yield from find_non_plain(value, key, (*outer, id(values)))
    elif isinstance(values, float) and not math.isfinite(values):
        yield Problem(prefix, "has to be a finite number", values)
    elif isinstance(values, str) and (problem := _text_problem(values)):
        yield Problem(prefix, problem, values)
    elif not isinstance(values, (str, int, float, bool, NoneType)):
        yield Problem(prefix, f"is a {type(values).__name__}; put it in quotes if a string is meant", values)


def _text_problem(text: str) -> str | None:
    """Why no file name, and no file in UTF-8, can contain `text`; None where they can."""
    if "\0" in text:
        return "contains the character NUL, which no path or name may; remove it"
    if any("\ud800" <= character <= "\udfff" for character in text):
        return "contains half of a surrogate pair, which UTF-8 lacks; write the character itself"
    return None


def validate(schema: type, values: Any, prefix: str = "") -> tuple[Any, list[Problem]]:
    """`values` as an instance of the dataclass `schema`, or None and all problems with them.

    Args:
        schema: Frozen dataclass with annotations that pydantic understands.
        values: Mappings, sequences and scalars loaded from YAML.
        prefix: Dotted key of `values`.
    """
    if non_plain := list(find_non_plain(values, prefix)):
        return None, non_plain
    if not isinstance(values, dict):
        return None, [Problem(prefix, "has to be a mapping", values)]
    checked, adapter = _validator(schema)
    try:
        # JSON mode accepts lists for tuples and mappings for dataclasses, yet is strict about scalars.
        config = adapter.validate_json(json.dumps(values), strict=True)
    except ValidationError as error:
        return None, [_problem(schema, details, prefix) for details in error.errors(include_url=False)]
    if checked is not schema:
        config = schema(**{field.name: getattr(config, field.name) for field in dataclasses.fields(checked)})
    return config, []


@lru_cache(maxsize=256)
def _validator(schema: type) -> tuple[type, TypeAdapter[Any]]:
    """The strict form of `schema`, and what validates it; to make one takes longer than the rest of composing."""
    checked = schema if hasattr(schema, "__pydantic_config__") else _strict(schema)
    with without_plugins():
        return checked, TypeAdapter(checked)


def _strict(schema: type) -> type:
    """A strict copy of an options dataclass, so that plug-ins need not know pydantic.

    The original stays as it is: after composing, a process may create backends and sources from plain values.
    """
    namespace = {"__module__": schema.__module__, "__doc__": schema.__doc__}
    return dataclasses.dataclass(frozen=True, kw_only=True)(type(schema.__name__, (schema, Strict), namespace))


def _problem(schema: type, details: Any, prefix: str) -> Problem:
    location = [str(part) for part in details["loc"]]
    key = ".".join([prefix, *location] if prefix else location)
    kind = details["type"]
    if kind in ("unexpected_keyword_argument", "extra_forbidden"):
        allowed = _fields_at(schema, details["loc"][:-1])
        message = "there is no such key" if allowed else "nothing can be set here"
        return Problem(key, message, details["input"], allowed, suggest_for=location[-1])
    if kind in ("missing", "missing_argument", "missing_keyword_only_argument"):
        return Problem(key, "is missing; set it under `overrides` in params.yaml or in the conf/ file")
    if kind == "literal_error":
        allowed = [part.strip().strip("'") for part in details["ctx"]["expected"].replace(" or ", ",").split(",")]
        return unknown(key, "not one of the values", details["input"], allowed)
    message = details["msg"].removeprefix("Value error, ")
    for theirs, ours in _WORDING.items():
        message = message.replace(theirs, ours)
    return Problem(key, message, details["input"], is_context_free=True)


def _fields_at(schema: Any, location: Sequence[str | int]) -> list[str]:
    """Names of the fields of the dataclass at `location` below `schema`."""
    import typing

    for part in location:
        # A position in a list leads to the type of the list's items.
        items = typing.get_args(schema)[:1] if typing.get_origin(schema) is list else ()
        if not dataclasses.is_dataclass(schema) and not items:
            return []
        schema = items[0] if items else typing.get_type_hints(schema).get(str(part))
    return [field.name for field in dataclasses.fields(schema)] if dataclasses.is_dataclass(schema) else []


def _format_value(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 120 else text[:117] + "..."
