"""Captures what C++ libraries write to standard error, such as the reason for a failure."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stderr
from typing import IO

_kept: IO[bytes] | None = None
"""The file of `kept_messages`."""


def reason(messages: Sequence[str], error: Exception | None = None) -> str:
    """What ExecuTorch's runtime wrote about a failure: its checks, with source lines, and `error`."""
    lines = [line.strip() for line in messages if "cpuinfo" not in line and "] arg " not in line]
    return " ".join([*lines[-4:], *([str(error)] if error else [])])


@contextmanager
def captured_messages(*ignored: str) -> Iterator[list[str]]:
    """Capture lines that are written to standard error; the list is filled when the block ends.

    ExecuTorch's bindings write to Python's `sys.stderr`, other libraries to the file descriptor, which is another
    place in a notebook or a test. Output of other threads is captured too.

    Args:
        ignored: Lines that contain one of these are dropped.
    """
    lines: list[str] = []
    sys.stderr.flush()
    with tempfile.TemporaryFile() if _kept is None else nullcontext(_kept) as file:
        start = file.seek(0, os.SEEK_END)
        original = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            same = os.fdopen(os.dup(file.fileno()), "w", buffering=1, errors="backslashreplace")
            with same, redirect_stderr(same):
                yield lines
        finally:
            os.dup2(original, 2)
            os.close(original)
            file.seek(start)
            text = file.read().decode(errors="replace")
            lines += [line for line in text.splitlines() if not any(part in line for part in ignored)]


@contextmanager
def kept_messages(file: IO[bytes]) -> Iterator[None]:
    """Write to `file` what is written to standard error, also what is captured within the block.

    Where a library ends this process, the one that opened the file finds the reason there.
    """
    global _kept
    _kept = file
    try:
        with captured_messages():
            yield
    finally:
        _kept = None
