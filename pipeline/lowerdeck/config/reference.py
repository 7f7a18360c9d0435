"""What the schema says about a key, in words: type, default and text."""

from __future__ import annotations

import ast
import collections.abc
import dataclasses
import inspect
import itertools
import json
import textwrap
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from lowerdeck.config.schema import Config

_SCALARS = {str: "text", int: "integer", float: "number", bool: "true or false", Any: "any value", type(None): "null"}


def comment(path: Path) -> list[str]:
    """The lines of the comment that a file begins with."""
    lines = itertools.takewhile(lambda line: line.startswith("#"), path.read_text(encoding="utf-8").splitlines())
    return [line.lstrip("# ") for line in lines]


def docstrings(cls: type) -> dict[str, str]:
    """The string that stands under each field of a dataclass, inherited ones included, by field."""
    inherited = [docstrings(base) for base in cls.__bases__ if dataclasses.is_dataclass(base)]
    tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    body = typing.cast(ast.ClassDef, tree.body[0]).body
    own = {
        statement.target.id: one_line(below.value.value)
        for statement, below in itertools.pairwise(body)
        if isinstance(statement, ast.AnnAssign)
        and isinstance(statement.target, ast.Name)
        and isinstance(below, ast.Expr)
        and isinstance(below.value, ast.Constant)
        and isinstance(below.value.value, str)
    }
    return {name: text for texts in (*inherited, own) for name, text in texts.items()}


def type_description(hint: Any) -> str:
    """A type in words."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return " ".join([type_description(arguments[0]), *_bounds(arguments[1:])])
    if origin is Literal:
        values = [f"`{json.dumps(value) if not isinstance(value, str) else value}`" for value in arguments]
        return f"one of {', '.join(values)}" if len(values) > 1 else values[0]
    if origin in (types.UnionType, typing.Union):
        return " or ".join(
            type_description(argument) for argument in sorted(arguments, key=lambda kind: kind is type(None))
        )
    if origin in (list, tuple, collections.abc.Sequence):
        inner = [argument for argument in arguments if argument is not Ellipsis]
        return f"list of {type_description(inner[0])}" if inner else "list"
    if origin in (dict, collections.abc.Mapping):
        return "mapping"
    return _SCALARS.get(hint) or str(getattr(hint, "__name__", hint))


def _bounds(metadata: Iterable[Any]) -> Iterator[str]:
    """Limits of a number in words; that texts and lists may not be empty goes without saying."""
    signs = {"gt": "above", "ge": "from", "lt": "below", "le": "up to"}
    for item in metadata:
        for constraint in getattr(item, "metadata", [item]):
            for name, sign in signs.items():
                bound = getattr(constraint, name, None)
                if bound is not None:
                    yield f"{sign} {bound:,}" if isinstance(bound, int) else f"{sign} {bound:g}"


def default_description(field: dataclasses.Field[Any]) -> str:
    """The default of a field in words."""
    if field.default is not dataclasses.MISSING:
        value = field.default
    elif field.default_factory is not dataclasses.MISSING:
        value = field.default_factory()
    else:
        return "required"
    value = dataclasses.asdict(value) if dataclasses.is_dataclass(value) and not isinstance(value, type) else value
    return f"default `{json.dumps(value)}`"


def one_line(text: str) -> str:
    """`text` with every run of white space as one space."""
    return " ".join(text.split())


def key_field(key: str, open_sections: Mapping[str, type]) -> tuple[type, dataclasses.Field[Any]]:
    """The dataclass and the field that a dotted key means.

    Args:
        key: Beginning with its section, e.g. `target.options.memory_mode`.
        open_sections: Dataclass by dotted key of the mappings whose keys the choices decide, e.g. `target.options`.

    Raises:
        KeyError: there is no such key; its argument is the part that does not exist.
    """
    section, *names = key.split(".")
    cls: Any = typing.get_type_hints(Config)[section]
    place = section
    for name in names[:-1]:
        place = f"{place}.{name}"
        inner = typing.get_type_hints(cls)[name]
        cls = open_sections.get(place) or next(
            (k for k in typing.get_args(inner) if dataclasses.is_dataclass(k)), inner
        )
        if not dataclasses.is_dataclass(cls):
            raise KeyError(place)
    fields = {field.name: field for field in dataclasses.fields(cls)}
    return cls, fields[names[-1]]


def keys_below(cls: type, prefix: str) -> list[str]:
    """Dotted keys of the fields of a dataclass."""
    return [f"{prefix}.{field.name}" for field in dataclasses.fields(cls)]
