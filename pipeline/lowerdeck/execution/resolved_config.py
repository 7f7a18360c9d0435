"""What a stage reads of build/config.yaml."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from lowerdeck.config.schema import Config


Section = TypeVar("Section")


def section(schema: type[Section]) -> Section:
    """The section of the resolved configuration that `schema` describes."""
    from lowerdeck.artifacts import paths
    from lowerdeck.config import load

    return load.read_section(paths.CONFIG, schema)


def whole_config() -> Config:
    """The whole resolved configuration."""
    from lowerdeck.artifacts import paths
    from lowerdeck.config import load

    return load.read_config(paths.CONFIG)
