"""Writes single values into params.yaml as a person would: comments and order stay."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.contracts import ConfigurationError


def with_override(path: Path, keys: Sequence[str], value: Any) -> str:
    """The text of params.yaml with `overrides.KEYS` set to `value`; the file stays as it is.

    Raises:
        ConfigurationError: it cannot be read, or holds something else than a mapping on the way.
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = 1 << 16
    try:
        params = yaml.load(path.read_text(encoding="utf-8"))
    except (OSError, YAMLError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from None
    place = params
    for depth, key in enumerate(("overrides", *keys[:-1])):
        if not isinstance(place, dict):
            raise ConfigurationError(f"{path}: a mapping has to stand at {'.'.join(('overrides', *keys)[:depth])}")
        if place.get(key) is None:
            place[key] = {}
        place = place[key]
    if not isinstance(place, dict):
        raise ConfigurationError(f"{path}: a mapping has to stand at {'.'.join(('overrides', *keys[:-1]))}")
    place[keys[-1]] = value
    text = io.StringIO()
    yaml.dump(params, text)
    return text.getvalue()
