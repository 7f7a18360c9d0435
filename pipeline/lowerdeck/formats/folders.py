"""Walks through folders, links to folders included."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from lowerdeck.contracts.errors import LowerdeckError

_MAX_LINKS = 8
"""Most links to folders on the way to a file: folders that link to each other have more ways than can be listed."""


def walk(folder: Path, is_left_out: Callable[[Path], bool]) -> Iterator[tuple[Path, list[str]]]:
    """A folder and those below it, each with the names of its files, links to nothing included.

    Links to folders are followed, unless they lead back to a folder that they are in.

    Args:
        folder: The first one.
        is_left_out: Whether a folder below it is passed over, with all that it holds.

    Raises:
        LowerdeckError: folders are linked in folders that are linked, and so on, too often.
    """
    passed: dict[Path, tuple[Path, ...]] = {folder: ()}  # folder -> where the links lie that led to it
    for place, folders, names in os.walk(folder, followlinks=True):
        parent = Path(place)
        yield parent, names
        links = passed.pop(parent)
        for name in [*folders]:
            path = parent / name
            through = (*links, parent.resolve()) if path.is_symlink() else links
            leads_back = through != links and any(link.is_relative_to(path.resolve()) for link in through)
            if is_left_out(path) or leads_back:
                folders.remove(name)
            elif len(through) > _MAX_LINKS:
                raise LowerdeckError(f"{path} is reached through more than {_MAX_LINKS} links to folders; remove some")
            else:
                passed[path] = through
