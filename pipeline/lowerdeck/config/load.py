"""Reads build/config.yaml: each stage names the sections that it depends on, and gets no others."""

from __future__ import annotations

import typing
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from lowerdeck.config.problems import raise_problems, validate
from lowerdeck.config.schema import Config
from lowerdeck.config.yaml_text import plain_values
from lowerdeck.contracts.errors import ConfigurationError

Section = TypeVar("Section")


def read_section(path: Path, schema: type[Section]) -> Section:
    """The section of the resolved configuration with the dataclass `schema`.

    Raises:
        ConfigurationError: compose has not run, or the file was edited by hand.
    """
    section, problems = validate(schema, _values(path).get(section_name(schema)), section_name(schema))
    raise_problems(problems)
    return typing.cast(Section, section)


def read_config(path: Path) -> Config:
    """The whole resolved configuration; only `track` and the layers above it may depend on all of it."""
    return _checked(_values(path))


def config_of(text: str) -> Config:
    """The resolved configuration in `text`, which a recorded build stores; options stay plain mappings.

    Raises:
        ConfigurationError: `text` is none, or comes from a version of the project with other keys.
    """
    import yaml

    try:
        return _checked(plain_values(text))
    except yaml.YAMLError as error:
        raise ConfigurationError(f"this is not a resolved configuration: {error}") from None


def _checked(values: Any) -> Config:
    config, problems = validate(Config, values)
    raise_problems(problems)
    assert isinstance(config, Config)
    return config


def section_name(schema: type) -> str:
    """The key of build/config.yaml for the section `schema`."""
    hints = typing.get_type_hints(Config)
    return next(name for name, hint in hints.items() if hint is schema)


def _values(path: Path) -> dict[str, Any]:
    import yaml

    if not path.is_file():
        raise ConfigurationError(f"{path} does not exist yet; `dvc repro compose` makes it")
    try:
        values = _content(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError, ValueError):
        values = None
    if not isinstance(values, dict):
        raise ConfigurationError(f"{path} was changed by hand; `dvc repro -f compose` restores it")
    return values


@lru_cache(maxsize=1)
def _content(text: str) -> Any:
    """What `text` holds, not to be changed; kept, because a stage reads the same file once for each of its sections."""
    return plain_values(text)
