"""Convolutions, fully connected layers and matrix products: every integer as LiteRT's reference kernels compute it."""

from __future__ import annotations

import numpy as np
import pytest

from lowerdeck.runtime.exact.litert import LitertProgram
from lowerdeck.runtime.exact.litert_graph import Kernels
from lowerdeck.runtime.exact.litert_layers import same_padding
from lowerdeck.runtime.exact.nodes import UnsupportedGraphError
from tests.runtime.exact.litert_models import Spec, check_equal, constant, model, options

INPUT_SCALE, OUTPUT_SCALE = 0.0371, 0.41
SAME, VALID = 0, 1
RELU, RELU_N1_TO_1, RELU6 = 1, 2, 3


def weights(shape: tuple[int, ...], axis: int, *, per_channel: bool = True, seed: int = 0) -> list[Spec]:
    """Constant weights over the whole int8 range, and a bias."""
    rng = np.random.default_rng(seed)
    channels = shape[axis]
    scales = rng.uniform(1e-3, 3e-2, channels if per_channel else 1).astype(np.float32).tolist()
    values = rng.integers(-127, 128, shape, dtype=np.int8)
    values.flat[0], values.flat[-1] = -127, 127
    bias = rng.integers(-20_000, 20_000, channels, dtype=np.int32)
    return [constant(values, scales, axis=axis), constant(bias, [INPUT_SCALE * scale for scale in scales])]


@pytest.mark.parametrize("activation", [0, RELU, RELU_N1_TO_1, RELU6])
@pytest.mark.parametrize(
    ("padding", "stride", "dilation", "size"),
    [
        (SAME, (1, 1), (1, 1), (7, 9)), (SAME, (2, 3), (1, 1), (7, 9)), (VALID, (2, 1), (1, 1), (5, 7)),
        (SAME, (1, 1), (2, 3), (7, 9)),
    ],
)  # fmt: skip
def test_convolution(
    padding: int, stride: tuple[int, int], dilation: tuple[int, int], size: tuple[int, int], activation: int
) -> None:
    height, width = 9, 11
    kernel = (3, 2)
    sides = zip((height, width), kernel, stride, dilation, strict=True)
    output = [
        -(-length // step) if padding == SAME else (length - (taps - 1) * spread - 1) // step + 1
        for length, taps, step, spread in sides
    ]
    made = options(
        "Conv2D", padding=padding, strideH=stride[0], strideW=stride[1], dilationHFactor=dilation[0],
        dilationWFactor=dilation[1], fusedActivationFunction=activation,
    )  # fmt: skip
    source = Spec((1, height, width, 5), [INPUT_SCALE], -17)
    result = Spec((1, *output, 6), [OUTPUT_SCALE], 3)
    expected = check_equal(model("CONV_2D", [source, *weights((6, *kernel, 5), 0)], result, made))
    assert len(np.unique(expected[0])) > (3 if activation == RELU_N1_TO_1 else 10)


@pytest.mark.parametrize("kernels", ["reference", "optimized"])
def test_convolution_in_groups(kernels: Kernels) -> None:
    made = options("Conv2D", padding=SAME, strideH=1, strideW=1, dilationHFactor=1, dilationWFactor=1)
    source, result = Spec((1, 6, 5, 8), [INPUT_SCALE], 90), Spec((1, 6, 5, 12), [OUTPUT_SCALE], -128)
    check_equal(model("CONV_2D", [source, *weights((12, 3, 3, 2), 0)], result, made), kernels=kernels)


@pytest.mark.parametrize(("multiplier", "stride"), [(1, 1), (1, 2), (3, 1)])
def test_depthwise_convolution(multiplier: int, stride: int) -> None:
    made = options(
        "DepthwiseConv2D", padding=SAME, strideH=stride, strideW=stride, depthMultiplier=multiplier,
        dilationHFactor=1, dilationWFactor=1,
    )  # fmt: skip
    size = -(-9 // stride)
    result = Spec((1, size, size, 5 * multiplier), [0.11], -5)
    source = Spec((1, 9, 9, 5), [INPUT_SCALE], 127)
    content = model("DEPTHWISE_CONV_2D", [source, *weights((1, 3, 3, 5 * multiplier), 3)], result, made)
    check_equal(content)
    with pytest.raises(UnsupportedGraphError, match="optimized kernel rounds the last channels differently"):
        LitertProgram(content, kernels="optimized")


@pytest.mark.parametrize(("padding", "size"), [(SAME, (8, 15)), (SAME, (7, 14)), (VALID, (9, 16))])
def test_transposed_convolution(padding: int, size: tuple[int, int]) -> None:
    made = options("TransposeConv", padding=padding, strideH=2, strideW=3)
    kernel = (3, 4)
    values, bias = weights((5, *kernel, 6), 0)
    shape = constant(np.array([1, *size, 5], np.int32))
    source = Spec((1, 4, 5, 6), [INPUT_SCALE], 11)
    content = model("TRANSPOSE_CONV", [shape, values, source, bias], Spec((1, *size, 5), [0.3], 7), made)
    check_equal(content)
    check_equal(content, kernels="optimized")


@pytest.mark.parametrize("kernels", ["reference", "optimized"])
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("has_bias", [False, True])
def test_fully_connected(per_channel: bool, has_bias: bool, kernels: Kernels) -> None:
    values, bias = weights((33, 257), 0, per_channel=per_channel)
    source, result = Spec((3, 257), [INPUT_SCALE], -128), Spec((3, 33), [0.9], 12)
    inputs = [source, values, bias if has_bias else None]
    check_equal(model("FULLY_CONNECTED", inputs, result, options("FullyConnected")), kernels=kernels)


def test_fully_connected_rounds_halves_away_from_zero() -> None:
    bias = np.arange(-4096, 4096, 32, dtype=np.int32)  # with a multiplier of 1/64: all halves and integers
    values = constant(np.zeros((256, 1), np.int8), [2.0**-6])
    content = model(
        "FULLY_CONNECTED",
        [Spec((1, 1), [0.5]), values, constant(bias, [2.0**-7])],
        Spec((1, 256), [0.5]),
        options("FullyConnected"),
    )
    (found,) = check_equal(content)
    halves = bias[1::2] / 64
    np.testing.assert_array_equal(found[0, 0, 1::2], np.sign(halves) * np.floor(np.abs(halves) + 0.5))


def test_accumulators_beyond_float32_are_exact() -> None:
    rng = np.random.default_rng(0)
    values = rng.choice(np.array([-127, 127], np.int8), (4, 9000))
    source, result = Spec((1, 9000), [0.02], 127), Spec((1, 4), [5.0])
    content = model("FULLY_CONNECTED", [source, constant(values, [0.01])], result, options("FullyConnected"))
    check_equal(content, batch=8)


@pytest.mark.parametrize("adjoints", [(False, False), (True, False), (False, True), (True, True)])
def test_matrix_product_of_two_inputs(adjoints: tuple[bool, bool]) -> None:
    left = (3, 70, 5) if adjoints[0] else (3, 5, 70)
    right = (1, 6, 70) if adjoints[1] else (1, 70, 6)
    content = model(
        "BATCH_MATMUL",
        [Spec(left, [0.07], 31), Spec(right, [0.013], -7)],
        Spec((3, 5, 6), [0.2], 4),
        options("BatchMatMul", adjX=adjoints[0], adjY=adjoints[1]),
    )
    check_equal(content)


def test_odd_padding_is_at_the_end() -> None:
    assert same_padding(8, 3, 2, 1) == (0, 1)
    assert same_padding(9, 3, 2, 1) == (1, 1)
    assert same_padding(7, 1, 3, 1) == (0, 0)


def test_computed_weights_are_named() -> None:
    content = model(
        "FULLY_CONNECTED",
        [Spec((1, 4), [0.1]), Spec((3, 4), [0.1])],
        Spec((1, 3), [0.1]),
        options("FullyConnected"),
    )
    with pytest.raises(UnsupportedGraphError, match=r"FULLY_CONNECTED .*: input 1 is not constant"):
        LitertProgram(content)
