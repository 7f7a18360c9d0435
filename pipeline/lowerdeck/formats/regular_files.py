"""Checks files that users name: pipes, devices and sockets are refused, because reading one may never end."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from lowerdeck.contracts.errors import LowerdeckError

_ENDLESS: tuple[tuple[Callable[[int], bool], str], ...] = (
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISSOCK, "a socket"),
)


def endless_kind(path: Path) -> str | None:
    """`a named pipe`, `a device` or `a socket` if `path` is one; None for everything else, and where nothing is."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):  # whoever reads the path reports it
        return None
    return next((kind for is_kind, kind in _ENDLESS if is_kind(mode)), None)


def check_regular(path: Path) -> Path:
    """`path`, after a check that reading it ends; a missing file is left to its reader.

    Raises:
        LowerdeckError: it is a named pipe, a device or a socket.
    """
    if kind := endless_kind(path):
        raise LowerdeckError(f"{path} is {kind}, and reading it may never end; name a regular file")
    return path


def check_tree(path: Path) -> None:
    """Check `path` and, if it is a folder, everything below that is reached without a link to another folder.

    Files are only listed: ten thousand take a hundredth of a second.

    Raises:
        LowerdeckError: one is a named pipe, a device, a socket, or a link that leads to itself.
    """
    _check_readable(path)
    folders = [str(path)]
    while folders:
        with suppress(OSError), os.scandir(folders.pop()) as entries:  # whoever reads it reports it
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                elif not entry.is_file(follow_symlinks=False):
                    _check_readable(Path(entry.path))


def _check_readable(path: Path) -> None:
    try:
        check_regular(path).stat()
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise LowerdeckError(f"{path} is a link that leads to itself; remove it, or link to a file") from None
