"""lowerdeck.runtime.exact.rescaling: every rounding, both ends of ranges, and which arithmetic is proven."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from lowerdeck.runtime.exact.rescaling import Rescaling, float64_is_exact, rescaler
from tests.runtime.exact.graphs import Graph, check, random_inputs

CPU = torch.device("cpu")
PLAIN = Rescaling(
    multiplier=torch.tensor([1 << 30]), shift=torch.tensor([31]), input_zp=0, output_zp=0, low=-128, high=127
)


def by_specification(parameters: Rescaling, values: list[int]) -> list[int]:
    """TOSA's apply_scale_32 with saturation, in Python's integers."""
    multiplier, shift = int(parameters.multiplier[0]), int(parameters.shift[0])
    results = []
    for given in values:
        value, rounding = given - parameters.input_zp, 1 << (shift - 1)
        if parameters.double_round and shift > 31:
            rounding += 1 << 30 if value >= 0 else -(1 << 30)
        result = ((value * multiplier + rounding) >> shift) + parameters.output_zp
        results.append(min(max(result, parameters.low), parameters.high))
    return results


def compare(parameters: Rescaling, values: list[int], dtype: torch.dtype = torch.int8) -> bool:
    """Compare all values with the specification; returns whether float64 computed them."""
    largest = max(abs(value - parameters.input_zp) for value in values)
    found = rescaler(parameters, largest, dtype, CPU)(torch.tensor(values))
    assert found.to(torch.int64).tolist() == by_specification(parameters, values)
    return float64_is_exact(parameters, largest)


@pytest.mark.parametrize("output_zp", [0, -128, 127])
@pytest.mark.parametrize("double_round", [False, True])
@pytest.mark.parametrize("shift", [2, 30, 31, 32, 38, 44, 45, 50, 62])
def test_ties_and_their_neighbours(shift: int, double_round: bool, output_zp: int) -> None:
    for multiplier in ((1 << 30), (1 << 30) + 1, (1 << 31) - 1, 1 << 20, 1):
        parameters = replace(
            PLAIN,
            multiplier=torch.tensor([multiplier]),
            shift=torch.tensor([shift]),
            output_zp=output_zp,
            double_round=double_round,
        )
        values = {0, 1, -1, 2**23, -(2**23), 2**31 - 1, -(2**31)}
        for half in range(-2 * 130, 2 * 130):  # halves and integers of the result
            exact = (half << shift) // (2 * multiplier)
            values |= {exact + step for step in (-1, 0, 1)}
        compare(parameters, sorted(value for value in values if -(2**31) <= value < 2**31))


def test_common_rescalings_are_proven_for_float64_and_extreme_ones_are_not() -> None:
    common = replace(PLAIN, multiplier=torch.tensor([(1 << 31) - 1]), shift=torch.tensor([40]))
    assert compare(common, list(range(-(2**20), 2**20, 997)))
    assert float64_is_exact(common, 2**31)
    assert not float64_is_exact(replace(common, shift=torch.tensor([50])), 2**31)
    wide = replace(common, low=-(2**31), high=2**31 - 1)
    assert float64_is_exact(wide, 255)
    assert not float64_is_exact(wide, 2**31)


def rescaled(
    source: str, result: str, shifts: list[int], *, zero_points: tuple[int, int] = (0, 0), double: bool = False,
    unsigned: tuple[bool, bool] = (False, False), scale32: bool = True, channels: int = 6,
) -> bytes:  # fmt: skip
    graph = Graph()
    generator = np.random.default_rng(len(shifts))
    high = 2**31 if scale32 else 2**15
    multipliers = generator.integers(high // 2, high, len(shifts))
    inputs = [
        graph.input((1, 5, 7, channels), source),
        graph.constant(multipliers, "int32" if scale32 else "int16"),
        graph.constant(shifts, "int8"),
        graph.constant([zero_points[0]], source),
        graph.constant([zero_points[1]], result),
    ]
    mode = graph.rounding("DOUBLE_ROUND" if double else "SINGLE_ROUND")
    return graph.finished(
        graph.add("RESCALE", "Rescale", inputs, (1, 5, 7, channels), result, scale32, mode, len(shifts) > 1, *unsigned)
    )


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize(
    ("source", "result", "shifts"),
    [
        ("int8", "int8", [31]),
        ("int8", "int32", [12]),
        ("int8", "int16", [24]),
        ("int16", "int8", [38]),
        ("int16", "int32", [17]),
        ("int16", "int16", [31]),
        ("int32", "int8", [54]),
        ("int32", "int8", [48, 50, 52, 54, 56, 57]),
        ("int32", "int16", [46]),
        ("int32", "int32", [33]),
    ],
)
def test_against_the_reference_model(source: str, result: str, shifts: list[int], double: bool) -> None:
    zero_points = (-128 if source == "int8" else 0, 127 if result == "int8" else 0)
    check(rescaled(source, result, shifts, zero_points=zero_points, double=double))


def test_sixteen_bit_multipliers() -> None:
    check(rescaled("int32", "int16", [32], scale32=False))
    check(rescaled("int16", "int16", [14], scale32=False))


@pytest.mark.parametrize("unsigned", [(True, False), (False, True)])
def test_unsigned_tensors(unsigned: tuple[bool, bool]) -> None:
    zero_points = (128 if unsigned[0] else 0, 128 if unsigned[1] else 0)
    graph_zero_points = tuple(value - 256 if value > 127 else value for value in zero_points)
    data = rescaled("int8", "int8", [31], zero_points=graph_zero_points, unsigned=unsigned)  # type: ignore[arg-type]
    check(data, random_inputs(data, seed=3))


def test_blocks_and_strides_do_not_matter() -> None:
    values = torch.randint(-(2**20), 2**20, (3, 96, 113, 97)).permute(0, 2, 3, 1)
    parameters = replace(PLAIN, shift=torch.full((96,), 42), multiplier=torch.randint(2**30, 2**31, (96,)))
    compute = rescaler(parameters, 2**20, torch.int8, CPU)
    expected = values.to(torch.int64) * parameters.multiplier + (1 << 41) >> 42
    assert torch.equal(compute(values), expected.clamp(-128, 127).to(torch.int8))
    assert compute(values[:0]).shape == (0, 113, 97, 96)
