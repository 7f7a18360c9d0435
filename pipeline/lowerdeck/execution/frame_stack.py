"""Keeps CPython from asking the system for memory at each call of a function at an unlucky depth.

Frames of Python functions lie in chunks of 16 KiB, some 80 calls deep, and a chunk is returned to the system as soon as
its last frame is left. Where a loop calls functions just at the end of a chunk, each call maps a chunk and unmaps it:
20,000 times in one convert of MobileNetV2, and 57,000 times, a tenth of its time, with one frame more around it.
CPython makes a chunk as large as a frame needs, and puts the frames behind it into what is left.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import TypeVar

Result = TypeVar("Result")

_SLOTS = 1 << 17
"""Of 8 bytes, in the frame around all others: its chunk has 2 MiB, of which it leaves 1 MiB to them. Memory that no
frame touches is never provided."""


def with_long_frame_stack(work: Callable[[], Result]) -> Result:
    """`work()`, with room for all of its calls in one chunk."""

    def call() -> Result:
        return work()

    code = call.__code__.replace(co_stacksize=_SLOTS)
    result: Result = FunctionType(code, globals(), closure=call.__closure__)()
    return result
