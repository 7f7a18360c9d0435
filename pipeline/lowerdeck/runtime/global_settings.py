"""Settings of a library that hold for all threads of a process."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager


def for_all_threads(
    settings: Callable[[], AbstractContextManager[None]],
) -> Callable[[], AbstractContextManager[None]]:
    """`settings`, which the first thread inside makes and the last one takes back.

    Otherwise the second thread would find those of the first, and leave them behind for good.

    Args:
        settings: Makes settings of the process, and takes them back.
    """
    lock, made, inside = threading.Lock(), ExitStack(), 0

    @contextmanager
    @functools.wraps(settings)
    def shared() -> Iterator[None]:
        nonlocal inside
        with lock:
            if inside == 0:
                made.enter_context(settings())
            inside += 1
        try:
            yield
        finally:
            with lock:
                inside -= 1
                if inside == 0:
                    made.close()

    return shared
