"""lowerdeck.evaluation.intervals and quantization_error: values worked out by hand and from the sources named there."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest

from lowerdeck.evaluation.intervals import (
    Z_95,
    median_interval,
    paired_difference,
    share_with_interval,
    wilson_interval,
)
from lowerdeck.evaluation.quantization_error import IDENTICAL_DB, error_lsb, power, sqnr_db


def hits(text: str) -> npt.NDArray[np.bool_]:
    return np.array([letter == "1" for letter in text], dtype=bool)


def test_the_quantile() -> None:
    assert math.erf(Z_95 / math.sqrt(2)) == pytest.approx(0.95, abs=1e-15)


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [
        (0, 10, 0.0, 0.27754),  # 3.84146 / 13.84146
        (10, 10, 0.72246, 1.0),
        (5, 10, 0.23659, 0.76341),  # 0.5 -+ 1.95996 sqrt(10) / 13.84146 * sqrt(0.25 + 3.84146 / 40)
        (81, 263, 0.2553, 0.3662),  # R. G. Newcombe, Statistics in Medicine 17 (1998), table I, score method
        (15, 148, 0.0624, 0.1605),
        (1, 1, 0.20654, 1.0),
    ],
)
def test_wilson(successes: int, trials: int, low: float, high: float) -> None:
    assert wilson_interval(successes, trials) == pytest.approx((low, high), abs=5e-5)


def test_the_ends_of_none_and_all_are_exact() -> None:
    assert wilson_interval(0, 360)[0] == 0.0
    assert wilson_interval(360, 360)[1] == 1.0
    assert wilson_interval(0, 360)[1] > 0.0
    assert wilson_interval(360, 360)[0] < 1.0


@pytest.mark.parametrize(("successes", "trials"), [(-1, 10), (11, 10), (0, 0)])
def test_what_is_no_share(successes: int, trials: int) -> None:
    with pytest.raises(AssertionError):
        wilson_interval(successes, trials)


def test_a_difference_of_pairs() -> None:
    """2 gains and 1 loss of 8: 3/10 and 2/10, 0.1 -+ 1.95996 sqrt((0.5 - 0.01) / 10)."""
    difference, low, high = paired_difference(hits("11110000"), hits("11001000"))
    assert difference == 0.125
    assert (low, high) == pytest.approx((0.1 - 0.43386, 0.1 + 0.43386), abs=5e-5)
    swapped = paired_difference(hits("11001000"), hits("11110000"))
    assert swapped == pytest.approx((-difference, -high, -low))


def test_a_difference_stays_within_shares() -> None:
    """One gain of 1: 2/3 and 1/3, 1/3 -+ 1.95996 sqrt((1 - 1/9) / 3) = 1/3 -+ 1.0669."""
    assert paired_difference(hits("1"), hits("0")) == pytest.approx((1.0, 1 / 3 - 1.06688, 1.0), abs=5e-5)
    assert paired_difference(hits("0"), hits("1")) == pytest.approx((-1.0, -1.0, 1.06688 - 1 / 3), abs=5e-5)


def test_a_share_with_its_ends() -> None:
    found = share_with_interval("x", hits("1110"))
    low, high = wilson_interval(3, 4)
    assert found == {"x": 0.75, "x_low": low, "x_high": high}


class TestError:
    @pytest.mark.parametrize(
        ("signal", "noise", "db"),
        [(100.0, 1.0, 20.0), (1.0, 10.0, -10.0), (1.0, 0.0, IDENTICAL_DB), (0.0, 1.0, 0.0), (0.0, 0.0, IDENTICAL_DB),
         (1.0, 1e-21, IDENTICAL_DB), (1.0, 1e-19, 190.0)],
    )  # fmt: skip
    def test_sqnr(self, signal: float, noise: float, db: float) -> None:
        assert sqnr_db(signal, noise) == pytest.approx(db)
        assert IDENTICAL_DB == 200.0

    def test_power_is_summed_in_float64(self) -> None:
        assert power(np.array([[3, -4]], dtype=np.int8)) == 25.0
        assert power(np.array([100, 100], dtype=np.int8)) == 20000.0

    def test_steps(self) -> None:
        found = error_lsb(np.array([1.0, 1.0, 2.0, 0.0]), np.array([1.0, 0.5, 0.0, 0.25]), 0.5)
        assert found.dtype == np.float64
        assert found.tolist() == [0.0, 1.0, 4.0, 0.5]

    def test_what_is_near_a_step_lies_on_it(self) -> None:
        steps = error_lsb(np.array([1.009, 0.991, 1.011, 0.989]), np.zeros(4), 1.0)
        assert steps.tolist() == [1.0, 1.0, 1.011, 0.989]


@pytest.mark.parametrize(
    ("count", "low", "high"),
    # Ranks of the 95 % interval of a median, as tables of the sign test give them.
    [(6, 1, 6), (9, 2, 8), (10, 2, 9), (20, 6, 15), (50, 18, 33), (100, 40, 61), (1_000_000, 499_020, 500_981)],
)
def test_the_interval_of_a_median(count: int, low: int, high: int) -> None:
    shuffled = np.random.RandomState(0).permutation(count) + 1.0
    assert median_interval(shuffled.tolist()) == (low, high)


@pytest.mark.parametrize("count", [0, 1, 5])
def test_too_few_values_have_no_interval(count: int) -> None:
    assert median_interval([1.0] * count) is None
