"""Captures what ExecuTorch's XNNPACK modules log while lowering: for reasons, and on stderr if verbose."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import FrameType

from executorch.exir.backend.utils import WhyNoPartition

from lowerdeck.delegation.rejections.rejection import Rejection, explain_rejection_at

_ALL = "executorch.backends.xnnpack"
_PARTITION = f"{_ALL}.partition"
_PREPROCESS = f"{_ALL}.xnnpack_preprocess"
"""Sets its own level, so its parents' level has no effect."""


@dataclass(frozen=True, kw_only=True)
class LoggedRejection:
    """The message of an operator's config that refuses a node."""

    message: str
    """The config's own message."""
    rejection: Rejection
    """The condition that led to it, and the decisive values."""


@contextmanager
def record_rejections() -> Iterator[dict[str, LoggedRejection]]:
    """Collect the first reason that a config logs for each node, a WhyNoPartition object at level DEBUG."""
    found: dict[str, LoggedRejection] = {}

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            reason = record.msg
            if isinstance(reason, WhyNoPartition) and reason.node is not None and reason.node.name not in found:
                found[reason.node.name] = LoggedRejection(
                    message=reason.reason, rejection=explain_rejection_at(_logging_frame())
                )

    with _handled(_PARTITION, Collector(), propagate=logging.getLogger(_ALL).isEnabledFor(logging.DEBUG)):
        yield found


def _logging_frame() -> FrameType:
    """The frame of the config that is logging a reason."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code is not WhyNoPartition.__call__.__code__:
        frame = frame.f_back
    assert frame is not None, "a WhyNoPartition logs itself when it is called"
    assert frame.f_back is not None
    return frame.f_back


@contextmanager
def log_to_stderr() -> Iterator[None]:
    """Write all log records to stderr, as `module: message`."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(module)s: %(message)s"))
    # Only one function lowers a stored edge program, and it logs that it is deprecated.
    handler.addFilter(lambda record: "DEPRECATION WARNING" not in str(record.msg))
    with ExitStack() as stack:
        stack.enter_context(_handled(_ALL, handler, propagate=False))
        stack.enter_context(_handled(_PREPROCESS, logging.NullHandler(), propagate=True))
        yield


@contextmanager
def _handled(name: str, handler: logging.Handler, *, propagate: bool) -> Iterator[None]:
    """Send all records of the logger `name` to `handler`, and to its parents if `propagate`."""
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
