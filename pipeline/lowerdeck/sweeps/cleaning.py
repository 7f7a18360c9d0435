"""Sweeps, and results in the project's store, that are old and that nobody keeps by name, pin or promotion."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.execution.cleaning import (
    Removable,
    Removables,
    is_inside,
    newest,
    removable_folders,
    remove_below,
    size_of,
)
from lowerdeck.sweeps import snapshot
from lowerdeck.sweeps.folder import Folder
from lowerdeck.sweeps.store.entries import entry_files, object_name

PINS = "pins"
"""Folder of a store: the results with the keys that its files list, one a line, are never removed."""
_KEY = re.compile("[0-9a-f]{64}")


def old_sweeps(project: Path, before: float, kept: Collection[str]) -> Removables:
    """Sweeps without a name whose last event is older than `before`, and copies that a killed process left.

    Args:
        project: The project.
        before: Seconds since 1970.
        kept: Ids of sweeps with a point that is promoted, registered or named.
    """
    return removable_folders(project, "sweep", _old_sweeps(project / snapshot.SWEEPS, before, kept))


def _old_sweeps(sweeps: Path, before: float, kept: Collection[str]) -> Iterator[tuple[Path, str, float]]:
    for path in sorted(sweeps.glob("*/sweep.json")):
        folder = Folder(path.parent)
        last_used = newest((path, folder.journal, folder.points, folder.summary))
        sweep = folder.read()
        if last_used < before and not sweep.name and sweep.id not in kept and not _is_running(folder):
            yield folder.path, f"{sweeps.name}/{sweep.id}: {' '.join(sweep.typed)}", last_used
    for path in sorted(sweeps.glob(".new.*")):
        if (last_used := newest([path])) < before:
            yield path, f"{sweeps.name}/{path.name}, incomplete", last_used


def _is_running(folder: Folder) -> bool:
    from filelock import FileLock, Timeout

    if not (folder.path / ".lock").exists():
        return False
    with suppress(Timeout), FileLock(folder.path / ".lock", timeout=0):
        return False
    return True


def old_results(project: Path, store: Path, before: float) -> Removables:
    """Results in a store that are older than `before`, and contents that only these have; a pinned one stays.

    A store is a cache: what is removed is made again when a sweep needs it. One outside of the project is left alone.
    """
    if not (store / "entries").is_dir() or not is_inside(project, store):
        return Removables(kind="store")
    entries, objects = _unused(store, before)
    if not entries and not objects:
        return Removables(kind="store")

    def remove() -> None:
        unused_entries, _ = _unused(store, before)
        for place in entries & unused_entries:
            remove_below(project, place)
        _, unused_objects = _unused(store, before)  # what a sweep has stored meanwhile may have the same contents
        for place in objects & unused_objects:
            remove_below(project, place)

    size = sum(map(size_of, entries | objects))
    item = Removable(what=f"{len(entries)} results", size_bytes=size, last_used=newest(entries | objects))
    return Removables(kind="store", items=[item], remove=remove)


def _unused(store: Path, before: float) -> tuple[set[Path], set[Path]]:
    """Entries and objects of `store` that may be removed."""
    pinned = _pinned(store)
    entries: set[Path] = set()
    used: set[Path] = set()
    for path in (store / "entries").glob("*/*"):
        try:
            content, old = path.read_bytes(), newest([path]) < before
            if old and path.parent.name + path.name not in pinned:
                entries.add(path)
            else:
                used |= {store / object_name(file.sha256) for file in entry_files(content)}
        except FileNotFoundError:
            continue
        except ValueError:  # damaged, and no result
            entries |= {path} if old else set()
    objects = {path for path in (store / "objects").glob("*/*") if path not in used and newest([path]) < before}
    return entries, objects


def _pinned(store: Path) -> set[str]:
    """The keys that files in pins/ list.

    Raises:
        LowerdeckError: a line is no key, so that it is unknown what is meant.
    """
    keys: set[str] = set()
    for path in sorted((store / PINS).glob("*")) if (store / PINS).is_dir() else ():
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
            text = line.partition("#")[0].strip()
            if text and not _KEY.fullmatch(text):
                raise LowerdeckError(f"{path}, line {number}: {text!r} is no key of a result (64 hexadecimal digits)")
            keys |= {text} if text else set()
    return keys
