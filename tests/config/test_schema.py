"""The schema's form: every field is described where it stands, and nothing can be changed once it is checked."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import pkgutil
import textwrap
from collections.abc import Iterator
from typing import Any, get_args, get_type_hints

import pytest

from lowerdeck import backends, contracts, datasets, models
from lowerdeck.config import schema
from lowerdeck.contracts.backends import NoOptions

SECTIONS = [
    value
    for value in vars(schema).values()
    if dataclasses.is_dataclass(value) and isinstance(value, type) and value.__module__ == schema.__name__
]
PLUG_POINTS = [
    *(
        part
        for name in backends.available()
        for part in (backends.source(name).device_type, backends.source(name).options_type)
    ),
    *(backends.source(name).flavor_options_type for name in backends.available()),
    *(source.Options for source in (models.source(name) for name in models.available())),
    *(source.Options for source in (datasets.source(name) for name in datasets.available())),
]
VALUES = [
    value
    for module in pkgutil.iter_modules(contracts.__path__, "lowerdeck.contracts.")
    for name, value in vars(importlib.import_module(module.name)).items()
    if dataclasses.is_dataclass(value) and isinstance(value, type) and not name.startswith("_")
]


def identity(part: Any) -> str:
    return f"{part.__module__.removeprefix('lowerdeck.')}.{part.__name__}"


def undescribed(part: type) -> list[str]:
    """Fields of a dataclass without a string literal right below them."""
    definition = ast.parse(textwrap.dedent(inspect.getsource(part))).body[0]
    assert isinstance(definition, ast.ClassDef)
    missing = []
    for statement, following in zip(definition.body, [*definition.body[1:], None], strict=True):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            literal = following.value if isinstance(following, ast.Expr) else None
            described = isinstance(literal, ast.Constant) and isinstance(literal.value, str) and literal.value.strip()
            if not described:
                missing.append(statement.target.id)
    return missing


def parts_of(part: Any) -> Iterator[type]:
    """The dataclasses that stand in the fields of `part`, at any depth: as they are, or in lists."""
    for hint in get_type_hints(part).values():
        for inner in (hint, *get_args(hint)):
            if dataclasses.is_dataclass(inner) and isinstance(inner, type):
                yield inner
                yield from parts_of(inner)


def test_there_is_a_section_for_every_group() -> None:
    sections = get_type_hints(schema.Config)
    assert set(sections) == {"build", "compare", *schema.GROUPS}
    own = {part for part in parts_of(schema.Config) if part.__module__ == schema.__name__}
    assert {schema.Config, *own} == set(SECTIONS)


@pytest.mark.parametrize("part", [section for section in SECTIONS if section is not schema.Config], ids=identity)
def test_every_field_of_a_section_is_described(part: type) -> None:
    assert undescribed(part) == []


@pytest.mark.parametrize("part", PLUG_POINTS, ids=identity)
def test_every_option_of_a_plug_point_is_described(part: type) -> None:
    assert undescribed(part) == []


def test_the_check_for_descriptions_finds_a_missing_one() -> None:
    assert undescribed(schema.Config) == [field.name for field in dataclasses.fields(schema.Config)]


@pytest.mark.parametrize("part", [*SECTIONS, *PLUG_POINTS], ids=identity)
def test_sections_and_options_are_frozen_and_keyword_only(part: Any) -> None:
    assert part.__dataclass_params__.frozen
    assert all(field.kw_only for field in dataclasses.fields(part))


@pytest.mark.parametrize("part", VALUES, ids=identity)
def test_values_that_cross_boundaries_are_keyword_only(part: Any) -> None:
    assert dataclasses.fields(part) or part is NoOptions
    assert all(field.kw_only for field in dataclasses.fields(part))


@pytest.mark.parametrize("part", SECTIONS, ids=identity)
def test_sections_refuse_unknown_keys_and_are_strict(part: Any) -> None:
    assert part.__pydantic_config__["extra"] == "forbid"
    assert part.__pydantic_config__["strict"] is True
    assert part.__pydantic_config__["allow_inf_nan"] is False
