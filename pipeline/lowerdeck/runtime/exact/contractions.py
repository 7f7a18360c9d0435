"""TOSA's convolutions, matrix products and pooling on integers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from lowerdeck.runtime.exact.accumulate import FLOAT32_LIMIT, Convolution, Geometry, Pointwise, matmul, multiplies_bytes
from lowerdeck.runtime.exact.nodes import RANGES, TORCH_DTYPES, Node, Prepare, Prepared
from lowerdeck.runtime.exact.rescaling import Rescaling, rescaler

_CONTRACTED = ("int8", "int16")


def _convolution(spatial: int) -> Prepare:
    """CONV2D and CONV3D: weights [o x kernel x c], inputs [n x spatial x c]."""

    def prepare(node: Node) -> Prepared:
        attributes = node.attributes
        weights = (node.numbers(1) - node.zero_point(4)).movedim(-1, 1)
        geometry = Geometry(
            stride=attributes.numbers(1, "i"), padding=attributes.numbers(0, "i"), dilation=attributes.numbers(2, "i")
        )
        return _contraction(node, weights, geometry, spatial)

    return prepare


def _depthwise(node: Node) -> Prepared:
    """DEPTHWISE_CONV2D: weights [kh x kw x c x m], output channel c * m."""
    attributes = node.attributes
    weights = node.numbers(1) - node.zero_point(4)
    channels = weights.shape[2]
    geometry = Geometry(
        stride=attributes.numbers(1, "i"),
        padding=attributes.numbers(0, "i"),
        dilation=attributes.numbers(2, "i"),
        groups=channels,
    )
    return _contraction(node, weights.permute(2, 3, 0, 1).flatten(0, 1).unsqueeze(1), geometry, 2)


def _transposed(node: Node) -> Prepared:
    """TRANSPOSE_CONV2D: weights [o x kh x kw x c]."""
    attributes = node.attributes
    weights = (node.numbers(1) - node.zero_point(4)).permute(3, 0, 1, 2)
    geometry = Geometry(
        stride=attributes.numbers(1, "i"), padding=attributes.numbers(0, "i"), dilation=(1, 1), transposed=True
    )
    return _contraction(node, weights, geometry, 2)


def _contraction(node: Node, weights: Tensor, geometry: Geometry, spatial: int) -> Prepared:
    operand = node.operands[0]
    if operand.dtype not in _CONTRACTED or node.operands[1].dtype not in ("int4", *_CONTRACTED):
        raise node.unsupported(f"has inputs of {operand.dtype} and weights of {node.operands[1].dtype}")
    sizes = geometry.stride, geometry.dilation, weights.shape[2:]
    if any(len(size) != spatial for size in sizes) or len(geometry.padding) != 2 * spatial:
        raise ValueError(f"operator {node.operator} has attributes of another number of dimensions than {spatial}")
    zero_point, bias = node.zero_point(3), node.numbers(2).flatten()
    shape = node.output.shape
    channels = weights.shape[0] * (weights.shape[1] if geometry.transposed else 1)
    outputs = weights.shape[1] if geometry.transposed else channels
    bias = bias.expand(outputs) if len(bias) == 1 else bias
    if zero_point and not geometry.transposed and not any(geometry.padding):
        # Without padding every weight meets an input, so that the zero point is a part of the bias.
        bias, zero_point = bias - zero_point * weights.flatten(1).sum(1), 0
    if _is_pointwise(node, weights, geometry, zero_point):
        multiply = Pointwise(weights.flatten(1), bias)
        return Prepared(lambda inputs: multiply(inputs[0]), *_within(node, multiply.bound))
    convolve = Convolution(weights, bias, geometry, largest=operand.largest(zero_point)).to(node.device)

    def step(inputs: Sequence[Tensor]) -> Tensor:
        values = inputs[0].flatten(0, 1).movedim(-1, 1)
        values = values.to(torch.float32) if zero_point else values
        result = convolve(values.sub_(zero_point) if zero_point else values)
        return result.movedim(1, -1).reshape(-1, *shape)

    return Prepared(step, *_within(node, convolve.bound))


def _is_pointwise(node: Node, weights: Tensor, geometry: Geometry, zero_point: int) -> bool:
    """Whether a convolution is a product of int8 matrices that this device computes fast."""
    plain = all(size == 1 for size in (*weights.shape[2:], *geometry.stride, geometry.groups))
    in_bytes = node.operands[0].dtype == "int8" and bool(((weights >= -128) & (weights <= 127)).all())
    unpadded = not geometry.transposed and not any(geometry.padding) and not zero_point
    return plain and in_bytes and unpadded and multiplies_bytes(node.device)


def _within(node: Node, bound: int) -> tuple[int, int]:
    low, high = RANGES[node.output.dtype]
    return max(low, -bound), min(high, bound)


def _matmul(node: Node) -> Prepared:
    """MATMUL: [n x h x c] times [n x c x w]."""
    left, right = node.operands[:2]
    if left.dtype not in _CONTRACTED or right.dtype not in _CONTRACTED:
        raise node.unsupported(f"multiplies {left.dtype} by {right.dtype}")
    zero_points = node.zero_point(2), node.zero_point(3)
    largest_left, largest_right = left.largest(zero_points[0]), right.largest(zero_points[1])

    def step(inputs: Sequence[Tensor]) -> Tensor:
        shifted = [values.to(torch.float32) - zp for values, zp in zip(inputs[:2], zero_points, strict=True)]
        return matmul(*shifted, largest_left=largest_left, largest_right=largest_right)

    return Prepared(step, *_within(node, largest_left * largest_right * left.shape[-1]))


def _window(node: Node) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Kernel, stride and padding as F.pad takes it."""
    kernel, stride, (top, bottom, left, right) = (node.attributes.numbers(slot, "i") for slot in range(3))
    return kernel, stride, (left, right, top, bottom)


def _max_pool(node: Node) -> Prepared:
    operand = node.operands[0]
    if operand.dtype not in _CONTRACTED:
        raise node.unsupported(f"has element type {operand.dtype}")
    kernel, stride, padding = _window(node)
    shape, dtype, low = node.output.shape, TORCH_DTYPES[operand.dtype], float(RANGES[operand.dtype][0])

    def step(inputs: Sequence[Tensor]) -> Tensor:
        values = inputs[0].flatten(0, 1).movedim(-1, 1).to(torch.float32)
        padded = F.pad(values, padding, value=low) if any(padding) else values
        result = F.max_pool2d(padded, kernel, stride)
        return result.movedim(1, -1).reshape(-1, *shape).to(dtype)

    return Prepared(step, operand.low, operand.high)


def _average_pool(node: Node) -> Prepared:
    """AVG_POOL2D: the sum, times the fixed-point reciprocal of the number of elements inside of the input."""
    operand = node.operands[0]
    if operand.dtype not in _CONTRACTED:
        raise node.unsupported(f"has element type {operand.dtype}")
    kernel, stride, padding = _window(node)
    input_zp, output_zp = node.zero_point(1), node.zero_point(2)
    inside = torch.ones((1, 1, *operand.shape[1:3]), dtype=torch.float64)
    counts = F.avg_pool2d(F.pad(inside, padding), kernel, stride, divisor_override=1).round().to(torch.int64)
    reciprocals = [_reciprocal(count) for count in counts.flatten().tolist()]
    multiplier, shift = (torch.tensor(values, dtype=torch.int64) for values in zip(*reciprocals, strict=True))
    low, high = RANGES[operand.dtype]
    parameters = Rescaling(
        multiplier=multiplier, shift=shift, input_zp=0, output_zp=output_zp, low=low, high=high
    )  # one for each position of the output, which becomes the last dimension
    largest = operand.largest(input_zp) * kernel[0] * kernel[1]
    scale = rescaler(parameters, largest, TORCH_DTYPES[operand.dtype], node.device)
    shape, dtype = node.output.shape, torch.float32 if largest <= FLOAT32_LIMIT else torch.float64

    def step(inputs: Sequence[Tensor]) -> Tensor:
        values = inputs[0].flatten(0, 1).movedim(-1, 1).to(dtype)
        if input_zp:
            values = values.sub_(input_zp)
        padded = F.pad(values, padding) if any(padding) else values
        sums = F.avg_pool2d(padded, kernel, stride, divisor_override=1)
        result = scale(sums.flatten(2)).reshape(sums.shape)
        return result.movedim(1, -1).reshape(-1, *shape)

    return Prepared(step)


def _reciprocal(count: int) -> tuple[int, int]:
    """Multiplier and shift of 1 / count, as TOSA's reciprocal_scale."""
    bits = (count - 1).bit_length()
    return ((2**30 + 1) << bits) // count, 30 + bits


PREPARE: dict[str, Prepare] = {
    "AVG_POOL2D": _average_pool,
    "CONV2D": _convolution(2),
    "CONV3D": _convolution(3),
    "DEPTHWISE_CONV2D": _depthwise,
    "MATMUL": _matmul,
    "MAX_POOL2D": _max_pool,
    "TRANSPOSE_CONV2D": _transposed,
}
