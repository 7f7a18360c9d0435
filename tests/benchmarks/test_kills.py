"""benchmarks/kills.py: builds that are killed at random moments go on to the files of an undisturbed build."""

from __future__ import annotations

import os

import pytest

from benchmarks.kills import SIGNALS, VICTIMS, cloned, play

KILLS = int(os.environ.get("LOWERDECK_TEST_KILLS", "4"))
"""Rounds; `LOWERDECK_TEST_KILLS=100 pytest tests/benchmarks/test_kills.py` has all of them."""
SEED = 3
TARGETS = ("xnnpack_cpu", "neutron_imxrt700")


def test_rounds_go_over_victims_and_signals() -> None:
    pairs = {(VICTIMS[n % len(VICTIMS)], SIGNALS[n // len(VICTIMS) % len(SIGNALS)]) for n in range(8)}
    assert len(pairs) == len(VICTIMS) * len(SIGNALS) == 8


@pytest.mark.slow
@pytest.mark.timeout(600 + 300 * KILLS)
def test_killed_builds_go_on_to_the_same_files() -> None:
    with cloned() as clone:
        for target in TARGETS:
            clone.build_undisturbed(target)
        rounds = [play(clone, number, SEED, TARGETS) for number in range(KILLS)]
    assert [str(each) for each in rounds if not each.same] == []
    assert any(each.killed for each in rounds)
