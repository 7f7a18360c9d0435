"""SHA-256 of values, files and folders: the one form in which fingerprints are computed and compared.

Little but the standard library is imported, so that computing a fingerprint stays cheap.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from lowerdeck.formats.folders import walk

ABSENT = "absent"
"""Digest of a missing path."""
IGNORED = ("__pycache__", ".ipynb_checkpoints")
UNREAD = re.compile(r"\..*|#.*#|.*(~|\.pyc)|__pycache__")
"""Names of files and folders that no code reads: hidden ones, copies that editors keep, bytecode."""
Stamp = tuple[int, ...]
"""Size, times of content and of change in nanoseconds, and inode."""
Seen = tuple[Stamp, str]
"""A file as it was read: its stamp and SHA-256."""
_SEEN: ContextVar[dict[Path, Seen] | None] = ContextVar("_SEEN", default=None)


def digest(value: Any) -> str:
    """SHA-256 of `value` as JSON with sorted keys, hexadecimal.

    Raises:
        ValueError: `value` contains NaN or an infinity, which JSON lacks.
        TypeError: `value` contains something else that JSON lacks.
    """
    return hashlib.sha256(json.dumps(value, sort_keys=True, allow_nan=False).encode()).hexdigest()


def bytes_digest(content: bytes) -> str:
    """SHA-256 of `content`, hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def stamp_of(path: Path) -> Stamp | None:
    """What changes with the content of a file; None without a file. `cp -p` keeps the first two of its parts."""
    try:
        status = os.stat(path)  # noqa: PTH116  many files
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


def file_digest(path: Path) -> str:
    """SHA-256 of a file, hexadecimal."""
    stamp = stamp_of(path)  # before reading, so that a later change is noticed
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    if (seen := _SEEN.get()) is not None and stamp is not None:
        seen.setdefault(path, (stamp, sha256))
    return sha256


@contextmanager
def files_seen() -> Iterator[dict[Path, Seen]]:
    """The files of which `file_digest` is computed meanwhile, as they were the first time."""
    seen: dict[Path, Seen] = {}
    before = _SEEN.set(seen)
    try:
        yield seen
    finally:
        _SEEN.reset(before)


def folder_digest(files: Mapping[str, str]) -> str:
    """Digest over a folder's files: their relative paths and SHA-256."""
    return digest(sorted(files.items()))


class Files:
    """Cached SHA-256 of files and folders; a file is read again only if its size, inode or a time stamp changed."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Stamp | None, str]] = {}

    def digest(self, place: Path) -> str:
        """SHA-256 of a file or of a folder's content; `ABSENT` if neither exists."""
        if place.is_dir():
            return folder_digest({name: self._file(place / name) for name in files_below(place)})
        return self._file(place) if place.is_file() else ABSENT

    def _file(self, path: Path) -> str:
        stamp, known = stamp_of(path), self._known.get(str(path))
        if stamp is None or known is None or known[0] != stamp:
            known = self._known[str(path)] = stamp, file_digest(path)
        return known[1]


def files_below(folder: Path) -> list[str]:
    """Paths below a folder of the files that its digest covers, sorted: no caches, no links that lead nowhere or back.

    Raises:
        LowerdeckError: folders are linked in folders that are linked, and so on, too often.
    """
    walked = walk(folder, lambda path: path.name in IGNORED)
    paths = (os.path.join(parent, name) for parent, names in walked for name in names if not name.endswith(".pyc"))  # noqa: PTH118  many files
    return sorted(os.path.relpath(path, folder) for path in paths if os.path.isfile(path))  # noqa: PTH113  as above


FILES = Files()
"""The cache of this process."""
