"""LiteRT's operators that reduce windows or dimensions: pooling, mean, maximum, minimum, softmax."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from lowerdeck.runtime.exact.accumulate import FLOAT32_LIMIT
from lowerdeck.runtime.exact.litert_graph import Operator
from lowerdeck.runtime.exact.litert_layers import check_int8, largest, output_range, window_padding
from lowerdeck.runtime.exact.litert_rescale import Rescale, fixed_point, quantize_multiplier

Step = Callable[[Sequence[Tensor]], Tensor]


def average_pool(operator: Operator, device: torch.device) -> Step:
    """AVERAGE_POOL_2D: the stored integers' mean, halves away from zero; padding does not count."""
    window, stride, padding, low, high = _window(operator)
    source, offset = operator.input(0), operator.input(0).zero_point
    # A quotient is an integer or at least 1/count away from one, which has to be more than this type rounds by.
    dtype = torch.float32 if math.prod(window) * 255 <= 2**16 else torch.float64
    ones = F.pad(torch.ones(1, 1, *source.shape[1:3], dtype=dtype), padding)
    counts = F.avg_pool2d(ones, window, stride, divisor_override=1).to(device)
    halves = (counts / 2).floor()

    def pool(inputs: Sequence[Tensor]) -> Tensor:
        images = _images(inputs[0]).to(dtype)
        images = F.pad(images, padding) if any(padding) else images
        stored = F.avg_pool2d(images, window, stride, divisor_override=1).add_(counts * offset)
        means = (stored.abs() + halves).div_(counts).floor_().mul_(stored.sign())
        return _back(means.sub_(offset).clamp_(low, high).float(), inputs[0])

    return pool


def max_pool(operator: Operator, device: torch.device) -> Step:
    """MAX_POOL_2D."""
    window, stride, padding, low, high = _window(operator)

    def pool(inputs: Sequence[Tensor]) -> Tensor:
        images = F.pad(_images(inputs[0]), padding, value=-math.inf) if any(padding) else _images(inputs[0])
        return _back(F.max_pool2d(images, window, stride).clamp_(low, high), inputs[0])

    return pool


def mean(operator: Operator, device: torch.device) -> Step:
    """MEAN: the sum times a multiplier with the count in it (QuantizedMeanOrSum of reference/reduce.h)."""
    check_int8(operator, operator.input(0))
    source, output = operator.input(0), operator.outputs[0]
    dims = _dims(operator)
    count = math.prod(source.shape[dim - 1] for dim in dims)
    multiplier, shift = quantize_multiplier(np.array([np.float64(source.scale) / np.float64(output.scale)]))
    down = min(count.bit_length() - 1, 32, 31 + int(shift[0]))
    rescaling = fixed_point((multiplier << down) // count, shift - down)
    low, high = output_range(operator, 0)
    bound = count * largest(source)
    try:
        rescale = Rescale(rescaling, bound=bound, low=low, high=high, device=device)
    except ArithmeticError as error:
        raise operator.unsupported(str(error)) from error
    dtype = torch.float32 if bound <= FLOAT32_LIMIT else torch.float64

    def reduce(inputs: Sequence[Tensor]) -> Tensor:
        sums = inputs[0].sum(dims, dtype=dtype)
        return rescale(sums.contiguous().view(-1, 1)).view(len(inputs[0]), *output.shape)

    return reduce


def total(operator: Operator, device: torch.device) -> Step:
    """SUM as LiteRT's optimized kernel computes it, in float32 (QuantizedMeanOrSum of optimized/reduce.h).

    Raises:
        UnsupportedGraphError: the reference kernel is to be equalled, which takes int8 for uint8.
    """
    check_int8(operator, operator.input(0))
    source, output, dims = operator.input(0), operator.outputs[0], _dims(operator)
    if operator.kernels == "reference":
        raise operator.unsupported("LiteRT's reference kernel is wrong")
    count = math.prod(source.shape[dim - 1] for dim in dims)
    if count * 128 > FLOAT32_LIMIT:
        raise operator.unsupported(f"a sum of {count} elements")
    scale = np.float32(source.scale) / np.float32(output.scale)
    bias = float(np.float32(-source.zero_point) * scale * np.float32(count))
    low, high = output_range(operator, 0)

    def reduce(inputs: Sequence[Tensor]) -> Tensor:
        stored = inputs[0].sum(dims).add_(count * source.zero_point)
        products = stored.mul_(float(scale)).add_(bias)
        # Halves go away from zero, as in C's round().
        whole = products.trunc()
        rounded = whole + products.sign() * ((products - whole).abs() >= 0.5)
        return rounded.clamp_(low, high).view(len(inputs[0]), *output.shape)

    return reduce


def extremum(operator: Operator, device: torch.device) -> Step:
    """REDUCE_MAX and REDUCE_MIN of the stored integers."""
    check_int8(operator, operator.input(0))
    dims, shape = _dims(operator), operator.outputs[0].shape
    function = torch.amax if operator.name == "REDUCE_MAX" else torch.amin
    difference = operator.input(0).zero_point - operator.outputs[0].zero_point
    return lambda inputs: (function(inputs[0], dims) + difference).view(len(inputs[0]), *shape)


def _dims(operator: Operator) -> tuple[int, ...]:
    """The reduced dimensions of [b x shape]."""
    rank = len(operator.input(0).shape)
    dims = {int(dim) % rank + 1 for dim in operator.constant(1).flatten()}
    if not dims:
        raise operator.unsupported("no dimension is reduced")
    return tuple(sorted(dims))


def _window(operator: Operator) -> tuple[tuple[int, int], tuple[int, int], tuple[int, ...], int, int]:
    """Window, stride, padding as F.pad takes it, and range. Slots: padding, stride_w, stride_h, w, h, activation."""
    check_int8(operator, operator.input(0))
    options, source, output = operator.options, operator.input(0), operator.outputs[0]
    if source.zero_point != output.zero_point:
        raise operator.unsupported("input and output have different zero points")
    stride, window = (options.scalar(2, "i"), options.scalar(1, "i")), (options.scalar(4, "i"), options.scalar(3, "i"))
    top, bottom, left, right = window_padding(operator, source, window, stride)
    low, high = output_range(operator, options.scalar(5, "b"))
    return window, stride, (left, right, top, bottom), low, high


def _images(values: Tensor) -> Tensor:
    """[b x n x h x w x c] -> channels-last [bn x c x h x w]."""
    return values.flatten(0, 1).permute(0, 3, 1, 2)


def _back(images: Tensor, like: Tensor) -> Tensor:
    back = images.permute(0, 2, 3, 1)
    return back.reshape(*like.shape[:2], *back.shape[1:])
