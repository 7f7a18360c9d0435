"""Work that a process does while it waits for another one, such as a converter's."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_pending: list[Callable[[], None]] = []
_owner = 0
"""The process that they are for: its forks would do them in vain."""


@contextmanager
def work_while_waiting(work: Callable[[], None]) -> Iterator[None]:
    """Have `work` done once, by whoever waits for another process first within the block; nobody may.

    Args:
        work: Raises nothing.
    """
    global _owner
    _owner = os.getpid()
    _pending.append(work)
    try:
        yield
    finally:
        if work in _pending:
            _pending.remove(work)


def use_waiting_time() -> None:
    """Do what is to be done while this process waits: call it between starting another process and waiting for it."""
    while _pending and _owner == os.getpid():
        _pending.pop(0)()
