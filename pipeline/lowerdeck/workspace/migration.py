"""Configuration of older versions in the keys and values of this one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lowerdeck.config.params import rewritten
from lowerdeck.workspace import contents


@dataclass(frozen=True, kw_only=True)
class Migration:
    """A change to the configuration that older files have not seen."""

    key: str
    """Dotted key, beginning with its section."""
    version: str
    """First version with the change."""
    new_key: str | None = None
    """Its name since then; None if it is unchanged."""
    old: str = ""
    """Regular expression that the beginning of a value matches which is to be replaced; empty: no value is."""
    new: str = ""
    """What replaces the match."""


MIGRATIONS = (
    Migration(key="dataset.source", version="0.2.0", old=r"random$", new="random_inputs"),
    Migration(key="model.options.factory", version="0.2.0", old=r"pipeline\.", new="lowerdeck."),
)
"""In the order in which they apply."""


def migrated_files(workspace: Path) -> Iterator[tuple[Path, str, tuple[str, ...]]]:
    """Path, new text and a line for each change, of params.yaml and the files of conf/ that need one.

    Raises:
        ConfigurationError: a file cannot be read.
    """
    params = workspace / contents.PARAMS
    if params.is_file():
        yield from _migrated(params, ("overrides",), "")
    for path in sorted((workspace / "conf").glob("*/*.yaml")):
        yield from _migrated(path, (), f"{path.parent.name}.")


def _migrated(path: Path, below: tuple[str, ...], section: str) -> Iterator[tuple[Path, str, tuple[str, ...]]]:
    lines: list[str] = []

    def migrate(values: Any) -> None:
        for migration in MIGRATIONS:
            if migration.key.startswith(section):
                lines.extend(_apply(migration, values, below, section))

    text = rewritten(path, migrate)
    if lines:
        yield path, text, tuple(lines)


def _apply(migration: Migration, values: Any, below: tuple[str, ...], section: str) -> Iterator[str]:
    """Apply `migration` to the content of one file, and describe what changed."""
    *way, key = (*below, *migration.key.removeprefix(section).split("."))
    place = values
    for name in way:
        place = place.get(name) if isinstance(place, dict) else None
    if not isinstance(place, dict) or key not in place:
        return
    value = place[key]
    if migration.old and isinstance(value, str) and re.match(migration.old, value):
        place[key] = re.sub(f"^{migration.old}", migration.new, value)
        yield f"{migration.key}: {value!r} is {place[key]!r} since version {migration.version}"
    if migration.new_key is not None:
        *way, new = (*below, *migration.new_key.removeprefix(section).split("."))
        for name in way:
            values = values.setdefault(name, {})
        values.setdefault(new, place.pop(key))
        yield f"{migration.key} is {migration.new_key} since version {migration.version}"
