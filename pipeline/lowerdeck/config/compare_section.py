"""The section `compare` by itself: no build depends on it, and Hydra takes a second to compose what surrounds it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from lowerdeck.config.compose import compose
from lowerdeck.config.options import conf_folders
from lowerdeck.config.problems import validate
from lowerdeck.config.schema import CompareConfig
from lowerdeck.config.yaml_text import read_mapping
from lowerdeck.contracts.errors import ConfigurationError

_MENTION = re.compile(rb"\bcompare\b")
_PRIMARY = "config.yaml"
_COMPOSED = ("${", "???", "@package")
"""What only Hydra resolves, in a file of conf/."""


def compare_section(params: Path, conf_dir: Path) -> CompareConfig:
    """The section `compare` that `params` and `conf_dir` give.

    Hydra composes it unless conf/config.yaml alone sets it, in plain values: then nothing else needs to be valid.

    Raises:
        ConfigurationError: the configuration is invalid.
    """
    values = _values_of_primary(params, conf_dir)
    config, problems = (None, []) if values is None else validate(CompareConfig, values, "compare")
    return compose(params, conf_dir).compare if config is None or problems else config


def _values_of_primary(params: Path, conf_dir: Path) -> dict[str, Any] | None:
    """The section in conf/config.yaml; None if params.yaml or an option may change it."""
    folders = conf_folders(conf_dir)
    primary = next((path for folder in folders if (path := folder / _PRIMARY).is_file()), None)
    shadowed = {folder / _PRIMARY for folder in folders}
    options = (path for folder in folders for path in folder.rglob("*.yaml") if path not in shadowed)
    if primary is None or any(_mentions(path) for path in (params, *options)):
        return None
    try:
        values = read_mapping(primary)
    except ConfigurationError:
        return None
    text, section = primary.read_text(encoding="utf-8"), values.get("compare", {})
    if any(mark in text for mark in _COMPOSED):
        return None
    return section if isinstance(section, dict) and "compare" not in str(values.get("defaults")) else None


def _mentions(path: Path) -> bool:
    """Whether `path` may set the section; Hydra reports files that cannot be read."""
    return not path.is_file() or _MENTION.search(path.read_bytes()) is not None
