"""The parts of build/config.yaml and build/code.json that stages read."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from lowerdeck.artifacts import paths
from lowerdeck.artifacts.files import read_json

if TYPE_CHECKING:
    from lowerdeck.config.schema import Config


Section = TypeVar("Section")


def section(schema: type[Section]) -> Section:
    """The section of the resolved configuration that `schema` describes."""
    from lowerdeck.config import load

    return load.read_section(paths.CONFIG, schema)


def code_digest(stage: str) -> str:
    """SHA-256 of all code that `stage` can reach, as computed by compose."""
    return str(read_json(paths.CODE)[stage])


def whole_config() -> Config:
    """The whole resolved configuration."""
    from lowerdeck.config import load

    return load.read_config(paths.CONFIG)
