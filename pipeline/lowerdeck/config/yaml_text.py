"""Fast reading of YAML that the project writes itself or reads often."""

from __future__ import annotations

from typing import Any


def plain_values(text: str) -> Any:
    """The content of `text` as mappings, lists and scalars, without running any code.

    Uses libyaml if PyYAML was built with it, which takes a seventh of the time.

    Raises:
        yaml.YAMLError: `text` is not YAML, or contains other objects.
    """
    import yaml

    return yaml.load(text, Loader=yaml.CSafeLoader) if yaml.__with_libyaml__ else yaml.safe_load(text)
