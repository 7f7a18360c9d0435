"""Reads YAML quickly: files that the project itself writes, or reads often."""

from __future__ import annotations

from typing import Any


def plain_values(text: str) -> Any:
    """The content of `text` as mappings, lists and scalars; nothing else can result, and no code is run.

    libyaml's loader takes a seventh of the time, where PyYAML was built with it.

    Raises:
        yaml.YAMLError: this is not YAML, or it asks for other objects.
    """
    import yaml

    return yaml.load(text, Loader=yaml.CSafeLoader) if yaml.__with_libyaml__ else yaml.safe_load(text)
