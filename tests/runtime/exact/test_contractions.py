"""lowerdeck.runtime.exact.contractions against the TOSA reference model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lowerdeck.runtime.exact import contractions
from tests.runtime.exact.graphs import Graph, check

GENERATOR = np.random.default_rng(2)


def weights(*shape: int) -> np.ndarray:  # type: ignore[type-arg]
    values = GENERATOR.integers(-127, 128, shape)
    values.reshape(shape[0], -1)[0] = 127  # one channel at its bound
    return values


def convolved(
    operator: str,
    attribute: str,
    source: tuple[int, ...],
    kernel: np.ndarray,  # type: ignore[type-arg]
    result: tuple[int, ...],
    *values: object,
    dtype: str = "int8",
    zero_point: int = 0,
    weight_dtype: str = "int8",
) -> bytes:
    graph = Graph()
    wide = "int48" if dtype == "int16" else "int32"
    bias = graph.constant(GENERATOR.integers(-(2**20), 2**20, result[-1]), wide)
    inputs = [graph.input(source, dtype), graph.constant(kernel, weight_dtype), bias]
    inputs += [graph.constant([zero_point], dtype), graph.constant([0], weight_dtype)]
    total = graph.add(operator, attribute, inputs, result, wide, *values)
    if dtype == "int8":
        return graph.finished(total)
    multiplier, shift = graph.constant([20000], "int16"), graph.constant([35], "int8")
    zeros = [graph.constant([0], wide), graph.constant([0], "int16")]
    mode = graph.rounding("SINGLE_ROUND")
    return graph.finished(
        graph.add(
            "RESCALE", "Rescale", [total, multiplier, shift, *zeros], result, "int16", False, mode, False, False, False
        )
    )


@pytest.mark.parametrize("padding", [(0, 0, 0, 0), (1, 1, 1, 1), (0, 1, 1, 0)])
@pytest.mark.parametrize(("dtype", "zero_point"), [("int8", 0), ("int8", -128), ("int8", 127), ("int16", 0)])
def test_convolutions(dtype: str, padding: tuple[int, ...], zero_point: int) -> None:
    rows, columns = (size + sum(pair) - 3 + 1 for size, pair in ((8, padding[:2]), (6, padding[2:])))
    acc = Graph().int32 if dtype == "int8" else Graph()._ts.DType.INT48
    data = convolved(
        "CONV2D", "Conv2d", (1, 8, 6, 4), weights(5, 3, 3, 4), (1, rows, columns, 5), list(padding), [1, 1], [1, 1],
        False, acc, dtype=dtype, zero_point=zero_point,
    )  # fmt: skip
    check(data)


@pytest.mark.parametrize("zero_point", [0, -5])
def test_pointwise_and_strided_convolutions(zero_point: int) -> None:
    plain = convolved(
        "CONV2D", "Conv2d", (1, 8, 6, 40), weights(7, 1, 1, 40), (1, 8, 6, 7), [0] * 4, [1, 1], [1, 1], False,
        Graph().int32, zero_point=zero_point,
    )  # fmt: skip
    check(plain)
    strided = convolved(
        "CONV2D", "Conv2d", (1, 9, 9, 3), weights(4, 3, 3, 3), (1, 3, 3, 4), [0] * 4, [2, 2], [2, 2], False,
        Graph().int32, zero_point=zero_point,
    )  # fmt: skip
    check(strided)


@pytest.mark.parametrize(
    ("operator", "attribute", "shape", "result"),
    [
        ("CONV2D", "Conv2d", (5, 3, 3, 3), (1, 5, 5, 5)),
        ("DEPTHWISE_CONV2D", "DepthwiseConv2d", (3, 3, 3, 1), (1, 5, 5, 3)),
    ],
)
def test_weights_of_four_bits(operator: str, attribute: str, shape: tuple[int, ...], result: tuple[int, ...]) -> None:
    kernel = GENERATOR.integers(-7, 8, shape)
    assert kernel.size % 2, "the last byte holds one weight"
    data = convolved(
        operator, attribute, (1, 7, 7, 3), kernel, result, [0] * 4, [1, 1], [1, 1], False, Graph().int32,
        zero_point=-9, weight_dtype="int4",
    )  # fmt: skip
    check(data)


def test_transposed_weights_of_four_bits() -> None:
    data = convolved(
        "TRANSPOSE_CONV2D", "TransposeConv2d", (1, 4, 5, 3), GENERATOR.integers(-7, 8, (3, 3, 3, 3)), (1, 9, 11, 3),
        [0] * 4, [2, 2], False, Graph().int32, zero_point=100, weight_dtype="int4",
    )  # fmt: skip
    check(data)


def test_more_channels_than_float32_holds() -> None:
    kernel = np.full((2, 1, 3, 1200), 127)
    data = convolved(
        "CONV2D", "Conv2d", (1, 1, 3, 1200), kernel, (1, 1, 1, 2), [0] * 4, [1, 1], [1, 1], False, Graph().int32,
        zero_point=-128,
    )  # fmt: skip
    check(data)


def test_depthwise_convolutions() -> None:
    data = convolved(
        "DEPTHWISE_CONV2D", "DepthwiseConv2d", (1, 7, 7, 6), weights(3, 3, 6, 2), (1, 4, 4, 12), [1, 1, 1, 1], [2, 2],
        [1, 1], False, Graph().int32, zero_point=-128,
    )  # fmt: skip
    check(data)


def test_transposed_convolutions() -> None:
    for padding, size in (((0, 0, 0, 0), (9, 11)), ((-1, 0, -1, -1), (8, 9)), ((1, 2, 0, 0), (12, 11))):
        data = convolved(
            "TRANSPOSE_CONV2D", "TransposeConv2d", (1, 4, 5, 3), weights(2, 3, 3, 3), (1, *size, 2), list(padding),
            [2, 2], False, Graph().int32, zero_point=100,
        )  # fmt: skip
        check(data)


def test_convolutions_in_three_dimensions() -> None:
    data = convolved(
        "CONV3D", "Conv3d", (1, 4, 5, 6, 3), weights(2, 2, 3, 3, 3), (1, 4, 5, 6, 2), [0, 1, 1, 1, 1, 1], [1, 1, 1],
        [1, 1, 1], False, Graph().int32, zero_point=-3,
    )  # fmt: skip
    check(data)


@pytest.mark.parametrize("depth", [7, 600])
def test_matrix_products(depth: int) -> None:
    graph = Graph()
    inputs = [graph.input((2, 3, depth), "int8"), graph.input((2, depth, 4), "int8")]
    inputs += [graph.constant([-128], "int8"), graph.constant([127], "int8")]
    check(graph.finished(graph.add("MATMUL", "MatMul", inputs, (2, 3, 4), "int32")))


@pytest.mark.parametrize("dtype", ["int8", "int16"])
def test_pooling(dtype: str) -> None:
    graph = Graph()
    given = graph.input((1, 7, 9, 4), dtype)
    zero = graph.constant([0 if dtype == "int16" else -9], dtype)
    window = [3, 2], [2, 2], [1, 1, 1, 0]
    mean = graph.add("AVG_POOL2D", "AvgPool2d", [given, zero, zero], (1, 4, 5, 4), dtype, *window, graph.int32)
    largest = graph.add("MAX_POOL2D", "MaxPool2d", [given], (1, 4, 5, 4), dtype, *window, graph.nan_mode)
    check(graph.finished(mean, largest))


def test_every_operator_is_tested() -> None:
    tested = Path(__file__).read_text()
    assert [name for name in contractions.PREPARE if f'"{name}"' not in tested] == []
