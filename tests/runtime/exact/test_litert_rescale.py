"""The floating-point rescaling equals LiteRT's integer arithmetic for every accumulator."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lowerdeck.runtime.exact.litert_rescale import (
    Rescale,
    Rescaling,
    fixed_point,
    from_scales,
    in_float64,
    quantize_multiplier,
)

CPU = torch.device("cpu")


def rounded_twice(accumulator: int, multiplier: int, shift: int) -> int:
    """MultiplyByQuantizedMultiplier, as gemmlowp's documentation of its two steps has it, in Python's integers."""
    product = (accumulator << max(shift, 0)) * multiplier
    nudge = 1 << 30 if product >= 0 else 1 - (1 << 30)
    high = abs(product + nudge) // (1 << 31) * (1 if product + nudge >= 0 else -1)
    if shift >= 0:
        return high
    mask = (1 << -shift) - 1
    return (high >> -shift) + ((high & mask) > (mask >> 1) + (1 if high < 0 else 0))


@pytest.mark.parametrize("real", [2.0**-7, 0.0031, 0.00049999, 0.25, 0.9999, 1.0, 3.7, 1e-6, 0.0])
def test_two_roundings(real: float) -> None:
    multipliers, shifts = quantize_multiplier(np.array([real]))
    accumulators = np.random.default_rng(0).integers(-(2**22), 2**22, 2000)
    accumulators = np.concatenate([accumulators, np.arange(-600, 600)])
    found = fixed_point(multipliers, shifts).function(accumulators[None])[0]
    expected = [rounded_twice(int(each), int(multipliers[0]), int(shifts[0])) for each in accumulators]
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("rescaling", [from_scales, in_float64])
@pytest.mark.parametrize(("smallest", "largest"), [(0.004, 0.02), (0.02, 0.3), (0.0009, 0.002), (0.5, 0.5), (1, 1.9)])
@pytest.mark.parametrize("zero_point", [-128, 3])
def test_all_accumulators(rescaling: object, smallest: float, largest: float, zero_point: int) -> None:
    assert callable(rescaling)
    real = np.random.default_rng(0).uniform(smallest, largest, 6)
    exact: Rescaling = rescaling(real)
    bound = min(int(400 / real.min()), 100_000)
    rescale = Rescale(exact, bound=bound, low=-128 - zero_point, high=127 - zero_point, device=CPU)
    accumulators = torch.arange(-bound, bound + 1)[:, None].expand(-1, len(real))
    expected = exact.function(accumulators.T.numpy()).T.clip(-128 - zero_point, 127 - zero_point)
    for dtype in (torch.float32, torch.float64):
        found = rescale(accumulators.to(dtype).contiguous())
        assert found.dtype == torch.float32
        np.testing.assert_array_equal(found.numpy(), expected)


def test_a_function_that_is_no_such_multiplication_is_refused() -> None:
    exact = from_scales(np.array([0.01]))
    shifted = Rescaling(lambda accumulators: exact.function(accumulators) + (accumulators > 5000), exact.factors)
    with pytest.raises(ArithmeticError, match="steps elsewhere"):
        Rescale(shifted, bound=100_000, low=-128, high=127, device=CPU)


def test_accumulators_that_overflow_in_litert_are_refused() -> None:
    with pytest.raises(ArithmeticError, match="overflow"):
        Rescale(from_scales(np.array([900.0])), bound=2**24, low=-128, high=127, device=CPU)
