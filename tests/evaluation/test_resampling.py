"""Draws of the bootstrap: the same for all builds on as many samples, so that their differences are paired."""

from __future__ import annotations

import numpy as np
import pytest

from lowerdeck.evaluation.resampling import differ, interval, num_draws, resampled

VALUES = np.random.default_rng(0).normal(size=400)


def mean(values: np.ndarray) -> dict[str, np.ndarray]:  # type: ignore[type-arg]
    return resampled(lambda weights: {"mean": weights @ values / weights.sum(axis=1)}, len(values))


def test_the_interval_of_a_mean_is_that_of_its_standard_error() -> None:
    found = interval(mean(VALUES)["mean"])
    assert found is not None
    error = 1.96 * VALUES.std() / 20
    assert found == pytest.approx((VALUES.mean() - error, VALUES.mean() + error), abs=0.02)


def test_draws_are_the_same_each_time_and_pairs_differ_by_little() -> None:
    first, second = mean(VALUES)["mean"], mean(VALUES + 0.01)["mean"]
    assert np.array_equal(first, mean(VALUES)["mean"])
    assert differ(second, first) is True, "a difference that every sample shows"
    assert differ(first, first) is False
    assert differ(first, first[:5]) is None
    noisy = mean(VALUES + np.random.default_rng(1).normal(size=400))["mean"]
    assert differ(noisy, first) is False


def test_draws_that_are_not_finite_have_no_interval() -> None:
    assert interval(np.array([1.0, np.nan])) is None


def test_one_sample_has_none() -> None:
    assert mean(VALUES[:1]) == {}


@pytest.mark.parametrize(("samples", "draws"), [(2, 999), (2000, 999), (10_000, 200), (100_000, 99)])
def test_many_samples_are_drawn_less_often(samples: int, draws: int) -> None:
    assert num_draws(samples) == draws
