"""lowerdeck.conformance.errors: errors in units that suit the element type, and what rounding explains."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch

from lowerdeck.conformance.errors import OF_INTEGERS, output_error, precision_of_types
from lowerdeck.contracts.conformance import ErrorUnit, OutputError, PartitionConformance
from lowerdeck.contracts.errors import LowerdeckError

FLOATS = precision_of_types([torch.float32])


def integers(*pairs: tuple[list[int], list[int]], depth: int = 1) -> OutputError:
    tensors = [tuple(torch.tensor(values, dtype=torch.int8) for values in pair) for pair in pairs]
    return output_error("out", tensors, 1.0, depth, precision=OF_INTEGERS)  # type: ignore[arg-type]


def test_integers_are_compared_in_steps_over_all_inputs() -> None:
    found = integers(([0, -128, 5], [0, 127, 5]), ([1, 1, 1], [1, 2, 1]))
    assert (found.max_error, found.unit) == (255.0, ErrorUnit.LSB)
    assert found.mean_error == pytest.approx(256 / 6)
    assert str(found).startswith("out is off by up to 255 LSB (mean 43; rounding explains 1.01)")


@pytest.mark.parametrize(("error", "depth", "explained"), [(1, 1, True), (2, 1, False), (2, 2, True), (3, 2, False)])
def test_every_rounding_explains_one_step(error: int, depth: int, explained: bool) -> None:
    found = integers(([0] * 100, [error] + [0] * 99), depth=depth)
    assert (found.excess <= 1) is explained


def test_a_mean_that_rounding_does_not_explain_counts_although_the_largest_error_is_within_its_bound() -> None:
    few, many = ([0] * 100, [4] + [0] * 99), ([0] * 100, [4] * 100)
    assert integers(few, depth=10).excess <= 1
    assert integers(many, depth=10).excess > 1


def test_a_dequantized_output_is_compared_in_steps_of_its_scale() -> None:
    found = output_error("out", [(torch.tensor([0.5, 1.0]), torch.tensor([0.5, 1.5]))], 0.25, 1, precision=OF_INTEGERS)
    assert (found.max_error, found.mean_error, found.unit) == (2.0, 1.0, ErrorUnit.LSB)


def test_floats_without_a_scale_are_compared_with_the_largest_value() -> None:
    expected = torch.tensor([0.0, -4.0])
    found = output_error("out", [(expected, expected + 0.002)], None, 1, precision=FLOATS)
    assert found.max_error == pytest.approx(0.0005, rel=1e-3)
    assert (found.unit, found.excess <= 1) == (ErrorUnit.RELATIVE, True)
    assert output_error("out", [(expected, expected + 0.02)], None, 1, precision=FLOATS).excess > 1
    assert output_error("out", [(expected, expected + 0.02)], None, 1, precision=OF_INTEGERS).excess <= 1


@pytest.mark.parametrize(("dtype", "steps"), [(torch.float16, 2e-3), (torch.bfloat16, 1.5e-2)])
def test_short_floats_are_rounded_to_fewer_digits(dtype: torch.dtype, steps: float) -> None:
    pair = (torch.tensor([1.0], dtype=dtype), torch.tensor([1.0 + steps], dtype=dtype))
    assert output_error("out", [pair], None, 1, precision=precision_of_types([torch.float32, dtype])).excess <= 1
    assert output_error("out", [pair], None, 1, precision=FLOATS).excess > 1


def test_indices_are_equal_or_not() -> None:
    pair = torch.tensor([1, 2, 3, 4]), torch.tensor([1, 2, 3, 400])
    found = output_error("out", [pair], None, 3, precision=OF_INTEGERS)
    assert (found.max_error, found.unit) == (0.25, ErrorUnit.SHARE)
    assert found.excess > 1


def test_indices_that_a_step_decides_are_explained_as_far_as_it_goes() -> None:
    expected = torch.arange(8)
    flipped, wrong = expected.clone(), expected.flip(0)
    flipped[2] = 5

    def found(actual: torch.Tensor) -> OutputError:
        return output_error(
            "out", [(expected, actual)], None, 3, precision=OF_INTEGERS, rounded=[lambda _: (expected, flipped)]
        )

    assert found(flipped).excess <= 1
    assert found(wrong).excess > 1


def test_nan_in_one_of_both_is_the_largest_error_and_in_both_none() -> None:
    nan = torch.tensor([math.nan, 1.0])
    assert output_error("out", [(nan, nan)], None, 1, precision=FLOATS).max_error == 0
    assert output_error("out", [(nan, torch.ones(2))], None, 1, precision=FLOATS).max_error == math.inf


def test_equal_infinities_are_no_error() -> None:
    infinite = torch.tensor([math.inf, -math.inf, 1.0])
    assert output_error("out", [(infinite, infinite)], None, 1, precision=FLOATS).max_error == 0
    assert output_error("out", [(infinite, -infinite)], None, 1, precision=FLOATS).max_error == math.inf


def test_rounding_that_leaves_the_domain_of_a_function_explains_nothing() -> None:
    pair, infinite = (torch.zeros(2), torch.full((2,), 9.0)), (torch.zeros(2), torch.full((2,), math.inf))
    found = output_error("out", [pair], 1.0, 1, precision=OF_INTEGERS, rounded=[lambda _: infinite])
    assert found.excess > 1


def test_rounding_that_a_steep_function_enlarges_is_explained() -> None:
    pair, enlarged = (torch.zeros(2), torch.full((2,), 3.0)), (torch.zeros(2), torch.full((2,), 3.0))
    assert output_error("out", [pair], 1.0, 1, precision=OF_INTEGERS).excess > 1
    assert output_error("out", [pair], 1.0, 1, precision=OF_INTEGERS, rounded=[lambda _: enlarged]).excess <= 1


def test_rounding_is_drawn_until_the_error_is_explained() -> None:
    def off_by(error: float) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.zeros(2), torch.full((2,), error)

    asked = []

    def drawn(error: float, _: int) -> tuple[torch.Tensor, torch.Tensor]:
        asked.append(error)
        return off_by(error)

    draws = [partial(drawn, error) for error in (2.0, 4.0, 9.0)]
    found = output_error("out", [off_by(3.0)], 1.0, 1, precision=OF_INTEGERS, rounded=draws)
    assert (found.bound, asked) == (4.0, [2.0, 4.0])
    assert found.sensitivity == pytest.approx(4.0 / 0.5)
    asked.clear()
    assert output_error("out", [off_by(10.0)], 1.0, 1, precision=OF_INTEGERS, rounded=draws).excess > 1
    assert asked == [2.0, 4.0, 9.0]


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_roundings_of_other_elements_do_not_explain_those_of_a_region(dim: int) -> None:
    """As of a concatenation: roundings enlarge the errors of a coarse half, and the other one has those that exist."""

    def errors(*halves: float) -> tuple[torch.Tensor, torch.Tensor]:
        actual = torch.cat([torch.full((2, 2, 32), half) for half in halves], dim)
        return torch.zeros_like(actual), actual

    asked = []

    def drawn(halves: tuple[float, float], _: int) -> tuple[torch.Tensor, torch.Tensor]:
        asked.append(halves)
        return errors(*halves)

    def compared(*draws: tuple[float, float]) -> OutputError:
        asked.clear()
        rounded = [partial(drawn, halves) for halves in draws]
        return output_error("out", [errors(2.0, 0.0)], 1.0, 1, precision=OF_INTEGERS, rounded=rounded)

    found = compared((0.0, 2.0), (0.0, 2.0))
    assert (found.excess, found.unevenness, found.is_loose) == (1.0, 4.0, True)  # two steps; the depth explains 0.5
    assert asked == [(0.0, 2.0)] * 2
    found = compared((0.0, 2.0), (2.0, 0.0), (2.0, 2.0))
    assert (found.excess, found.unevenness, found.is_loose) == (1.0, 1.0, False)
    assert asked == [(0.0, 2.0), (2.0, 0.0)]


def test_a_few_elements_are_no_region() -> None:
    """One of a thousand classes may be two steps off where in nine drawings others are."""
    actual, other = torch.zeros(1, 1000), torch.zeros(1, 1000)
    actual[0, 3], other[0, 700] = 2, 2
    zeros = torch.zeros(1, 1000)
    found = output_error("out", [(zeros, actual)], 1.0, 1, precision=OF_INTEGERS, rounded=[lambda _: (zeros, other)])
    assert found.excess <= 1
    assert not found.is_loose


def test_an_error_that_the_depth_explains_needs_no_other_rounding() -> None:
    def costly(_: int) -> Any:
        raise AssertionError("executed once more")

    pair = (torch.zeros(4), torch.tensor([0.0, 0.0, 1.0, 0.0]))
    assert output_error("out", [pair], 1.0, 1, precision=OF_INTEGERS, rounded=[costly]).bound == 1.01


def test_only_the_input_whose_error_the_depth_explains_least_is_rounded_otherwise() -> None:
    def off_by(error: float) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.zeros(2), torch.full((2,), error)

    pairs, asked = [off_by(error) for error in (1.0, 3.0, 0.0, 2.0)], []

    def drawn(place: int) -> tuple[torch.Tensor, torch.Tensor]:
        asked.append(place)
        return off_by(3.5)

    found = output_error("out", pairs, 1.0, 1, precision=OF_INTEGERS, rounded=[drawn])
    assert (asked, found.max_error, found.mean_error) == ([1], 3.0, 3.0)
    assert (found.bound, found.mean_bound) == (3.5, 3.5)
    assert output_error("out", pairs, 1.0, 1, precision=OF_INTEGERS, rounded=[lambda _: off_by(2.5)]).excess > 1


def test_errors_relative_to_the_largest_value_are_those_of_all_inputs() -> None:
    """A float16 layer norm on XNNPACK was 2.9 times its bound by the largest value of one input, and right by all."""
    pairs, asked = [(torch.tensor([1.0]), torch.tensor([1.1])), (torch.tensor([10.0]), torch.tensor([10.0]))], []

    def drawn(place: int) -> tuple[torch.Tensor, torch.Tensor]:
        asked.append(place)
        return pairs[place][0], pairs[place][0]

    found = output_error("out", pairs, None, 1, precision=FLOATS, rounded=[drawn] * 9)
    assert found.max_error == pytest.approx(0.01, rel=1e-3)
    assert asked == [0, 1] * 5


def test_empty_outputs_agree() -> None:
    assert output_error("out", [(torch.empty(0), torch.empty(0))], None, 1, precision=FLOATS).max_error == 0


def test_another_shape_is_refused() -> None:
    with pytest.raises(LowerdeckError, match=r"out has shape \[1, 2\] instead of \[2\]"):
        output_error("out", [(torch.zeros(2), torch.zeros(1, 2))], None, 1, precision=FLOATS)


def test_the_worst_output_decides_about_a_partition() -> None:
    right, wrong = integers(([1], [1])), integers(([1], [100]))
    found = PartitionConformance(partition="tag0", depth=1, outputs=(right, wrong))
    assert (found.worst, found.conforms) == (wrong, False)
    assert PartitionConformance(partition="tag0", depth=1, outputs=(right,)).conforms
