"""Paired tests by draws: builds on the same samples, whatever their task."""

from __future__ import annotations

import numpy as np

from lowerdeck.comparison.columns import Kind, columns_of, resolve_columns
from lowerdeck.comparison.marks import pair_key
from lowerdeck.comparison.paired import drawn_candidates, drawn_tests
from tests.comparison.builds_by_hand import build

DRAWS = np.random.default_rng(0).normal(0.7, 0.05, 999).astype(np.float32)
TEXTS = {"task_metrics.miou": "max share", "task_metrics.mae": "min"}


def two() -> list:  # type: ignore[type-arg]
    metrics = [
        {"delegated_miou": value, "delegated_miou_low": 0.6, "delegated_miou_high": 0.8, "delegated_mae": 2.0}
        for value in (0.7, 0.71)
    ]
    return [build(label, values, samples="s", texts=TEXTS) for label, values in zip("ab", metrics, strict=True)]


def test_a_task_says_which_values_are_better_and_which_are_shares() -> None:
    (miou,) = resolve_columns("delegated_miou", columns_of(two()))
    (mae,) = resolve_columns("delegated_mae", columns_of(two()))
    assert (miou.kind, miou.direction, miou.is_fraction) == (Kind.MEASURED, "max", True)
    assert (mae.kind, mae.direction, mae.is_fraction) == (Kind.MEASURED, "min", False)
    drops = build("c", {"quantization_drop": 0.5}, texts={**TEXTS, "primary_metric": "mae"})
    (drop,) = columns_of([drops])
    assert (drop.direction, drop.is_fraction) == ("min", False)
    assert resolve_columns("quality", columns_of(two())) == [miou]


def test_overlapping_intervals_are_distinguished_by_pairs() -> None:
    builds = two()
    ((column, near),) = drawn_candidates(builds)
    assert column.metric == "delegated_miou"
    assert len(near) == 2
    draws = {"a": {"delegated_miou": DRAWS}, "b": {"delegated_miou": DRAWS + np.float32(0.01)}}
    assert drawn_tests(column, draws, near) == {pair_key(column, *builds): True}
    draws["b"]["delegated_miou"] = np.random.default_rng(1).permutation(DRAWS)
    assert drawn_tests(column, draws, near) == {pair_key(column, *builds): False}
    assert drawn_tests(column, {"a": draws["a"]}, near) == {}
