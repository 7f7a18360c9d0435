"""lowerdeck.execution.frame_stack: no depth of the stack makes calls slow."""

from __future__ import annotations

import resource

from lowerdeck.execution.frame_stack import with_long_frame_stack

CALLS = 300


def nothing() -> None:
    """What is called."""


def most_faults(depth: int = 200) -> int:
    """The most pages that the system provides for CALLS calls, at any depth up to `depth`."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(CALLS):
        nothing()
    here = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    return max(here, most_faults(depth - 1)) if depth else here


def test_no_depth_asks_the_system_for_memory_at_each_call() -> None:
    assert most_faults() >= CALLS, "CPython no longer does what the module works around"
    assert with_long_frame_stack(most_faults) < CALLS / 10


def test_the_result_and_the_exception_are_those_of_the_work() -> None:
    assert with_long_frame_stack(lambda: 5) == 5
    try:
        with_long_frame_stack(lambda: 1 // 0)
    except ZeroDivisionError:
        return
    raise AssertionError("the exception is lost")
