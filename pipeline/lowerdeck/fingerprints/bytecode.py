"""Bytecode that Python keeps beside the user's sources, and would execute although a source is another one now.

Python takes bytecode for that of a source if size and time stamp, in whole seconds, are the same. Two edits within a
second may agree in them, and so may two files of one archive or checkout, of which a link or `cp -p` puts one in the
place of the other. The digests of stages' code then say what is not executed.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

CLOCK_S = 0.05
"""Most by which time stamps of files are behind the clock."""


def placed_s(file: Path) -> float:
    """When a file, or the link to it, was written, moved or put in its place, in seconds since 1970.

    Raises:
        OSError: there is none.
    """
    statuses = [file.lstat(), file.stat()] if file.exists() else [file.lstat()]  # a link to nothing
    return max(max(status.st_mtime, status.st_ctime) for status in statuses)


def drop_outdated(files: Iterable[Path]) -> None:
    """Remove the bytecode of those of `files` that are Python's and may have been put in their place after it.

    It is written again when they are imported. What cannot be removed stays.
    """
    for file in files:
        if file.suffix == ".py":
            with suppress(OSError, NotImplementedError):  # Python that keeps no bytecode
                kept = Path(importlib.util.cache_from_source(str(file)))
                if kept.stat().st_mtime <= placed_s(file) + CLOCK_S:
                    kept.unlink()
