"""Observing a check leaves a profiler that is running as it was."""

from __future__ import annotations

import cProfile
import pstats
import sys
from typing import Any

from lowerdeck.delegation.rejections.conditions import call_profiled


def check(number: int) -> list[int]:
    doubled = 2 * number
    return [number, doubled]


def test_the_variables_of_a_check_are_seen_while_a_profiler_runs() -> None:
    profiler = cProfile.Profile()
    profiler.enable()
    try:
        answer, seen = call_profiled(lambda: check(2), check.__code__)
        sorted([3, 2, 1])
    finally:
        profiler.disable()
    assert (answer, seen is not None and seen[1]["doubled"]) == ([2, 4], 4)
    assert any("sorted" in name for _, _, name in pstats.Stats(profiler).stats)  # type: ignore[attr-defined]


def test_a_profile_function_is_set_again() -> None:
    def before(*_: Any) -> None: ...

    sys.setprofile(before)
    try:
        call_profiled(lambda: check(5), check.__code__)
        found = sys.getprofile()
    finally:
        sys.setprofile(None)
    assert found is before
