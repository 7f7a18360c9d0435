"""What ExecuTorch's XNNPACK modules log while they lower: listened to for reasons, shown where verbose."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from executorch.exir.backend.utils import WhyNoPartition

_ALL = "executorch.backends.xnnpack"
_PARTITION = f"{_ALL}.partition"
_PREPROCESS = f"{_ALL}.xnnpack_preprocess"
"""Sets its own level, so that the one of the loggers above it means nothing to it."""


@contextmanager
def reasons() -> Iterator[dict[str, str]]:
    """Name of a node -> the first reason that a config logs for leaving it, a WhyNoPartition object at level DEBUG."""
    found: dict[str, str] = {}

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if isinstance(record.msg, WhyNoPartition) and record.msg.node is not None:
                found.setdefault(record.msg.node.name, record.msg.reason)

    with _handled(_PARTITION, Collector(), propagate=logging.getLogger(_ALL).isEnabledFor(logging.DEBUG)):
        yield found


@contextmanager
def shown() -> Iterator[None]:
    """Everything that is logged goes to stderr, as `module: message`."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(module)s: %(message)s"))
    # convert lowers an edge program that was stored, by the one function that takes it; it is advised against there.
    handler.addFilter(lambda record: "DEPRECATION WARNING" not in str(record.msg))
    with ExitStack() as stack:
        stack.enter_context(_handled(_ALL, handler, propagate=False))
        stack.enter_context(_handled(_PREPROCESS, logging.NullHandler(), propagate=True))
        yield


@contextmanager
def _handled(name: str, handler: logging.Handler, *, propagate: bool) -> Iterator[None]:
    """Give all that is logged below the logger `name` to `handler`, and to the loggers above it if `propagate`."""
    logger = logging.getLogger(name)
    level, propagated = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    logger.propagate = propagate
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagated
