"""Pooling and reductions: every integer as LiteRT's reference kernels compute it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lowerdeck.runtime.exact.litert import LitertProgram
from lowerdeck.runtime.exact.nodes import UnsupportedGraphError
from tests.runtime.exact.litert_models import Spec, check_equal, constant, model, options, reference

SAME, VALID = 0, 1


@pytest.mark.parametrize("name", ["AVERAGE_POOL_2D", "MAX_POOL_2D"])
@pytest.mark.parametrize("activation", [0, 1])
@pytest.mark.parametrize(("padding", "size"), [(SAME, (5, 4)), (VALID, (4, 3))])
def test_pooling(name: str, activation: int, padding: int, size: tuple[int, int]) -> None:
    made = options(
        "Pool2D", padding=padding, strideH=2, strideW=3, filterHeight=3, filterWidth=4,
        fusedActivationFunction=activation,
    )  # fmt: skip
    source, result = Spec((1, 9, 10, 3), [0.05], -13), Spec((1, *size, 3), [0.05], -13)
    check_equal(model(name, [source], result, made))


@pytest.mark.parametrize("side", [16, 17, 90, 300])
@pytest.mark.parametrize("zero_point", [-128, -13, 127])
def test_averages_of_large_windows(side: int, zero_point: int) -> None:
    made = options("Pool2D", padding=VALID, strideH=1, strideW=1, filterHeight=side, filterWidth=side)
    source, result = Spec((1, side, side + 1, 3), [0.05], zero_point), Spec((1, 1, 2, 3), [0.05], zero_point)
    content = model("AVERAGE_POOL_2D", [source], result, made)
    check_equal(content)
    # Sums around halves, and the largest ones.
    program, generator = LitertProgram(content), np.random.default_rng(side)
    for low, high in ((-1, 0), (0, 1), (-128, -127), (126, 127), (-128, -128), (127, 127)):
        images = generator.integers(low, high + 1, (2, *source.shape), dtype=np.int8)
        images[1, 0, :, : side // 2] = low
        images[1, 0, :, side // 2 :] = high
        np.testing.assert_array_equal(program([torch.from_numpy(images)])[0].numpy(), reference(content, [images])[0])


@pytest.mark.parametrize("name", ["MEAN", "REDUCE_MAX", "REDUCE_MIN"])
@pytest.mark.parametrize("dims", [(1, 2), (-1,), (0, 1, 2, 3)])
@pytest.mark.parametrize("keep", [False, True])
def test_reduction(name: str, dims: tuple[int, ...], keep: bool) -> None:
    shape = (2, 4, 7, 5)
    reduced = {dim % 4 for dim in dims}
    if keep:
        output = tuple(1 if dim in reduced else size for dim, size in enumerate(shape))
    else:
        output = tuple(size for dim, size in enumerate(shape) if dim not in reduced)
    quantization = ([0.02], 30) if name == "MEAN" else ([0.05], -13)
    content = model(
        name,
        [Spec(shape, [0.05], -13), constant(np.array(dims, np.int32))],
        Spec(output, *quantization),
        options("Reducer", keepDims=keep),
    )
    check_equal(content)


def test_means_between_two_integers_are_rounded_as_the_kernel_does() -> None:
    source, result = Spec((1, 8, 64), [0.05], 3), Spec((1, 1, 64), [0.05], 3)
    dims = constant(np.array([1], np.int32))
    check_equal(model("MEAN", [source, dims], result, options("Reducer", keepDims=True)), batch=64)


@pytest.mark.parametrize("dims", [(1,), (1, 2)])
def test_sum_equals_the_optimized_kernel(dims: tuple[int, ...]) -> None:
    source, result = Spec((1, 8, 7), [0.05], -13), Spec((1, 1, 1 if 2 in dims else 7), [0.2], 30)
    content = model("SUM", [source, constant(np.array(dims, np.int32))], result, options("Reducer", keepDims=True))
    check_equal(content, batch=20, kernels="optimized")


def test_the_wrong_kernel_of_sum_is_not_imitated() -> None:
    source, dims = Spec((1, 8, 4), [0.05]), constant(np.array([1], np.int32))
    content = model("SUM", [source, dims], Spec((1, 1, 4), [0.2]), options("Reducer", keepDims=True))
    with pytest.raises(UnsupportedGraphError, match="operator SUM"):
        LitertProgram(content)
