"""ExecuTorch's cortex_m operators with the integer arithmetic of CMSIS-NN.

ExecuTorch's Python implementations (executorch.backends.cortex_m.ops.operators) state the arguments. They approximate
three operators in floats that the device computes in integers: average pooling, softmax, and what these round. Here
CMSIS-NN decides, for all of its instruction sets alike (scalar, DSP, MVE): docs/cortex_m.md has the comparison.

Tensors are [n x c x h x w] in any memory layout; operators whose names end in `_nhwc` take and return [n x h x w x c].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch.nn import functional as F

from lowerdeck.formats.pte import TensorSpec

Pair = list[int]
"""Values for height and width."""
_FLOAT32_EXACT = 1 << 24
"""Sums of integers below it are exact in float32, in any order."""
_INT8 = (-128, 127)
ADD_SHIFT = 20
"""Left shift of the operands of an addition, before they are brought to a common scale."""


Factor = torch.Tensor | int
Requantize = Callable[[torch.Tensor, Factor, Factor], torch.Tensor]
"""arm_nn_requantize, in one of the two ways in which CMSIS-NN can be built."""


def requantize(value: torch.Tensor, multiplier: Factor, shift: Factor) -> torch.Tensor:
    """arm_nn_requantize: value * multiplier * 2^(shift - 31) in two roundings, as CMSIS-NN does by default.

    The first rounds half up, after the multiplication, the second half away from zero, after the right shift.

    Args:
        value: int64, with values of an int32.
        multiplier: In Q31; a tensor is broadcast.
        shift: Left where positive.
    """
    shift = torch.as_tensor(shift, dtype=torch.int64)
    left, right = shift.clamp(min=0), (-shift).clamp(min=0)
    return _divided_by_power_of_two(_doubling_high_product(value << left, multiplier), right)


def requantize_rounding_once(value: torch.Tensor, multiplier: Factor, shift: Factor) -> torch.Tensor:
    """arm_nn_requantize with CMSIS_NN_USE_SINGLE_ROUNDING: value * multiplier * 2^(shift - 31), rounded half up.

    MVE's VQDMULH drops bits of the product before a rounding shift of at least one bit, which gives the same integers.

    Args:
        value: int64, with values of an int32.
        multiplier: In Q31; a tensor is broadcast.
        shift: -31 ... 30.
    """
    half = (value * multiplier) >> (30 - torch.as_tensor(shift, dtype=torch.int64))
    return (half + 1) >> 1


def _doubling_high_product(value: torch.Tensor, factor: Factor) -> torch.Tensor:
    """The high 32 bits of twice the product, rounded; arm_nn_doubling_high_mult."""
    return (value * factor + (1 << 30)) >> 31


def _divided_by_power_of_two(value: torch.Tensor, exponent: Factor) -> torch.Tensor:
    """Rounded, halves away from zero; arm_nn_divide_by_power_of_two."""
    exponent = torch.as_tensor(exponent, dtype=torch.int64)
    half = (torch.ones_like(exponent) << exponent) >> 1
    # Of negative numbers, exactly a half has to round down: one less before adding the half.
    return (value + half - ((value < 0) & (exponent > 0)).to(torch.int64)) >> exponent


def _clamped(value: torch.Tensor, low: int = _INT8[0], high: int = _INT8[1]) -> torch.Tensor:
    return value.clamp(low, high).to(torch.int8)


def _accumulated(largest: int, compute: Callable[[torch.dtype], torch.Tensor]) -> torch.Tensor:
    """int64 sums of products, computed in the fastest float type that is exact up to `largest`."""
    return compute(torch.float32 if largest < _FLOAT32_EXACT else torch.float64).to(torch.int64)


def _add(
    left: torch.Tensor, left_zero: int, left_multiplier: int, left_shift: int,
    right: torch.Tensor, right_zero: int, right_multiplier: int, right_shift: int,
    out_zero: int, out_multiplier: int, out_shift: int, low: int, high: int,
    *, scaled: Requantize,
) -> torch.Tensor:  # fmt: skip
    """arm_elementwise_add_s8."""
    first = scaled((left.to(torch.int64) - left_zero) << ADD_SHIFT, left_multiplier, left_shift)
    second = scaled((right.to(torch.int64) - right_zero) << ADD_SHIFT, right_multiplier, right_shift)
    return _clamped(scaled(first + second, out_multiplier, out_shift) + out_zero, low, high)


def _mul(
    left: torch.Tensor, left_zero: int, right: torch.Tensor, right_zero: int,
    out_zero: int, multiplier: int, shift: int,
    *, scaled: Requantize,
) -> torch.Tensor:  # fmt: skip
    """arm_elementwise_mul_s8."""
    product = (left.to(torch.int64) - left_zero) * (right.to(torch.int64) - right_zero)
    return _clamped(scaled(product, multiplier, shift) + out_zero)


def _div(
    left: torch.Tensor, left_zero: int, right: torch.Tensor, right_zero: int, out_zero: int, scale: float
) -> torch.Tensor:
    """A quotient of floats, 0 where the divisor is 0: CMSIS-NN has no division, and ExecuTorch's kernel none either."""
    dividend, divisor = (left.to(torch.int32) - left_zero).float(), (right.to(torch.int32) - right_zero).float()
    quotient = torch.where(divisor == 0, 0.0, dividend / divisor)
    limits = torch.iinfo(left.dtype)
    return (torch.round(quotient * scale) + out_zero).clamp(limits.min, limits.max).to(left.dtype)


def _activation(value: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """The entry of a table with 256 results."""
    return table.flatten()[value.to(torch.int64) + 128]


def _linear(
    value: torch.Tensor, weights: torch.Tensor, bias: torch.Tensor | None, kernel_sum: torch.Tensor | None,
    input_offset: int, weight_offset: int, out_offset: int,
    multipliers: Sequence[int], shifts: Sequence[int], high: int, low: int,
    *, scaled: Requantize,
) -> torch.Tensor:  # fmt: skip
    """arm_fully_connected_s8: programs for MVE have a `kernel_sum` with bias and input offset, others a `bias`.

    Args:
        value: int8 [... x features].
        weights: int8 [out x features].
        bias: int32 [out].
        kernel_sum: int32 [1 x out].
        input_offset: Negative zero point of `value`.
        weight_offset: Negative zero point of `weights`.
        out_offset: Zero point of the result.
        multipliers: One, in Q31.
        shifts: One.
        high: Largest result.
        low: Smallest result.
    """
    offset = 0 if kernel_sum is not None else input_offset
    added = kernel_sum if kernel_sum is not None else bias

    def product(dtype: torch.dtype) -> torch.Tensor:
        return (value.to(dtype) + offset) @ (weights.to(dtype) + weight_offset).T

    sums = _accumulated(value.shape[-1] * 256 * 256, product)
    sums = sums if added is None else sums + added.to(torch.int64).flatten()
    return _clamped(scaled(sums, multipliers[0], shifts[0]) + out_offset, low, high)


def _batch_matmul(
    left: torch.Tensor, left_offset: int, right_transposed: torch.Tensor, right_offset: int,
    out_zero: int, multiplier: int, shift: int, scratch: torch.Tensor,
    *, scaled: Requantize,
) -> torch.Tensor:  # fmt: skip
    """arm_batch_matmul_s8 on int8 [b x m x k] and [b x n x k]."""

    def product(dtype: torch.dtype) -> torch.Tensor:
        return (left.to(dtype) + left_offset) @ (right_transposed.to(dtype) + right_offset).mT

    sums = _accumulated(left.shape[-1] * 256 * 256, product)
    return _clamped(scaled(sums, multiplier, shift) + out_zero)


def _conv2d(
    value: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, stride: Pair, padding: Pair, dilation: Pair,
    input_offset: int, out_offset: int, multipliers: torch.Tensor, shifts: torch.Tensor, low: int, high: int,
    scratch: torch.Tensor,
    *, scaled: Requantize,
) -> torch.Tensor:  # fmt: skip
    """arm_convolve_s8: weight int8 [out x h x w x in of a group]."""
    groups = value.shape[1] // weight.shape[3]
    kernel = weight.permute(0, 3, 1, 2)
    sums = _convolved(value, kernel, input_offset, stride, padding, dilation, groups)
    return _per_channel(sums, bias, multipliers, shifts, out_offset, low, high, scaled)


def _depthwise_conv2d(
    value: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, stride: Pair, padding: Pair, dilation: Pair,
    depth_multiplier: int, input_offset: int, out_offset: int, multipliers: torch.Tensor, shifts: torch.Tensor,
    low: int, high: int, scratch: torch.Tensor,
    *, scaled: Requantize,
) -> torch.Tensor:  # fmt: skip
    """arm_depthwise_conv_s8: weight int8 [1 x h x w x out]."""
    kernel = weight.permute(3, 0, 1, 2)
    sums = _convolved(value, kernel, input_offset, stride, padding, dilation, value.shape[1])
    return _per_channel(sums, bias, multipliers, shifts, out_offset, low, high, scaled)


def _transpose_conv2d(
    value: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, stride: Pair, padding: Pair,
    output_padding: Pair, dilation: Pair, input_offset: int, out_offset: int, multipliers: torch.Tensor,
    shifts: torch.Tensor, low: int, high: int, scratch: torch.Tensor, output_scratch: torch.Tensor,
    *, scaled: Requantize,
) -> torch.Tensor:  # fmt: skip
    """arm_transpose_conv_s8: weight int8 [out x h x w x in]."""
    kernel = weight.permute(3, 0, 1, 2)

    def compute(dtype: torch.dtype) -> torch.Tensor:
        moved = value.to(dtype) + input_offset
        return F.conv_transpose2d(moved, kernel.to(dtype), None, stride, padding, output_padding, 1, dilation)

    sums = _accumulated(kernel[:, 0].numel() * 255 * 128, compute)
    return _per_channel(sums, bias, multipliers, shifts, out_offset, low, high, scaled)


def _convolved(
    value: torch.Tensor, kernel: torch.Tensor, offset: int, stride: Pair, padding: Pair, dilation: Pair, groups: int
) -> torch.Tensor:
    """int64 sums of a convolution; the padding is the input's zero point, so it adds nothing."""

    def compute(dtype: torch.dtype) -> torch.Tensor:
        return F.conv2d(value.to(dtype) + offset, kernel.to(dtype), None, stride, padding, dilation, groups)

    return _accumulated(kernel[0].numel() * 255 * 128, compute)


def _per_channel(
    sums: torch.Tensor, bias: torch.Tensor | None, multipliers: torch.Tensor, shifts: torch.Tensor, offset: int,
    low: int, high: int, scaled: Requantize,
) -> torch.Tensor:  # fmt: skip
    """Requantize int64 sums [n x c x h x w], with a multiplier and a shift for each channel."""
    if bias is not None:
        sums = sums + bias.to(torch.int64).view(-1, 1, 1)
    found = scaled(sums, multipliers.to(torch.int64).view(-1, 1, 1), shifts.to(torch.int64).view(-1, 1, 1))
    return _clamped(found + offset, low, high)


def _avg_pool2d(
    value: torch.Tensor, kernel: Pair, stride: Pair, padding: Pair, ceil_mode: bool, zero_point: int, multiplier: int,
    shift: int, scratch: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    """arm_avgpool_s8: the mean of the stored integers inside the input, halves away from zero.

    The scale (`multiplier`, `shift`) and the zero point, equal for input and output, do not take part.
    """

    def sums(summed: torch.Tensor) -> torch.Tensor:
        return F.avg_pool2d(summed, kernel, stride, padding, ceil_mode, True, 1).to(torch.int64)

    total, count = sums(value.double()), sums(torch.ones_like(value[:1, :1], dtype=torch.float64))
    rounded = torch.where(total > 0, total + count // 2, total - count // 2)
    return _clamped(rounded.div(count, rounding_mode="trunc"))


def _max_pool2d(
    value: torch.Tensor, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair, ceil_mode: bool, input_zero: int,
    out_zero: int, low: int, high: int,
) -> torch.Tensor:  # fmt: skip
    """arm_max_pool_s8."""
    return _clamped(F.max_pool2d(value.float(), kernel, stride, padding, dilation, ceil_mode), low, high)


def _pad(value: torch.Tensor, before: Sequence[int], after: Sequence[int], fill: int) -> torch.Tensor:
    """arm_pad_s8: amounts for four dimensions in the order of memory, where missing leading ones are 0."""
    order = _memory_order(value)
    amounts = [(0, 0)] * value.dim()
    for position, dimension in enumerate(order):
        index = position + 4 - value.dim()
        amounts[dimension] = (before[index], after[index])
    return F.pad(value, [amount for pair in reversed(amounts) for amount in pair], value=fill)


def _memory_order(value: torch.Tensor) -> Sequence[int]:
    """Dimensions from outermost to innermost as ExecuTorch's passes see them: channels-last or in order.

    Shapes that lie in memory alike in both orders count as channels-last; passes_utils.is_channels_last.
    """
    if value.dim() != 4:
        return range(value.dim())
    ambiguous = value.shape[1] == 1 or value.shape[2] == value.shape[3] == 1
    return (0, 2, 3, 1) if ambiguous or tuple(value.dim_order()[:2]) == (0, 2) else range(4)


def _transpose(value: torch.Tensor, order: Sequence[int]) -> torch.Tensor:
    """arm_transpose_s8."""
    return value.permute(tuple(order))


_SOFTMAX_BITS = 12
"""Integer bits of the sum of exponentials."""
_EXP_FACTORS = (1672461947, 1302514674, 790015084, 290630308, 39332535, 720401, 242)
"""exp(-2^k) in Q31 for k = -2 ... 4; gemmlowp's fixedpoint.h, as in CMSIS-NN."""
_Q31_MAX = (1 << 31) - 1


def _softmax(
    value: torch.Tensor, dim: int, input_zero: int, out_zero: int, multiplier: int, shift: int, diff_min: int
) -> torch.Tensor:
    """arm_softmax_s8: exponentials in Q31 of the differences from the largest value, times the sum's reciprocal."""
    difference = value.to(torch.int64) - value.to(torch.int64).amax(dim, keepdim=True)
    counts = difference >= diff_min
    exponential = _exp_on_negative(_doubling_high_product(difference * (1 << shift), multiplier))
    terms = torch.where(counts, _divided_by_power_of_two(exponential, _SOFTMAX_BITS), 0)
    total = terms.sum(dim, keepdim=True)
    headroom = 31 - torch.floor(torch.log2(total.double())).to(torch.int64)
    reciprocal = _one_over_one_plus((total << headroom) - (1 << 31))
    scaled = _divided_by_power_of_two(_doubling_high_product(reciprocal, exponential), _SOFTMAX_BITS - headroom + 23)
    return _clamped(torch.where(counts, scaled + _INT8[0], _INT8[0]))


def _exp_on_negative(value: torch.Tensor) -> torch.Tensor:
    """exp of int64 values in Q5.26 that are at most 0, in Q0.31; arm_nn_exp_on_negative_values."""
    quarter = 1 << 24
    fraction = (value & (quarter - 1)) - quarter
    remainder = fraction - value
    x = (fraction << 5) + (1 << 28)
    square = _doubling_high_product(x, x)
    cube_and_fourth = _divided_by_power_of_two(_doubling_high_product(square, square), 2) + _doubling_high_product(
        square, x
    )
    series = _divided_by_power_of_two(_doubling_high_product(cube_and_fourth, 715827883) + square, 1)  # thirds
    result = 1895147668 + _doubling_high_product(x + series, 1895147668)  # exp(-1/8) in Q31
    for bit, factor in enumerate(_EXP_FACTORS):
        result = torch.where((remainder & (quarter << bit)) != 0, _doubling_high_product(result, factor), result)
    return torch.where(value == 0, _Q31_MAX, result)


def _one_over_one_plus(value: torch.Tensor) -> torch.Tensor:
    """1 / (1 + x) in Q31 for x in Q31 of 0 ... 1, by three steps of Newton's method."""
    total = value + _Q31_MAX
    half = (total + torch.where(total >= 0, 1, -1)).div(2, rounding_mode="trunc")
    x = 1515870810 + _doubling_high_product(half, -1010580540)  # 48/17 and -32/17 in Q2.29
    for _ in range(3):
        correction = _doubling_high_product(x, (1 << 29) - _doubling_high_product(half, x))
        x = x + _saturated(correction << 2)
    return _saturated(x << 1)


def _saturated(value: torch.Tensor) -> torch.Tensor:
    return value.clamp(-_Q31_MAX - 1, _Q31_MAX)


def _nhwc(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """`function` for tensors whose last dimension is the channel."""

    def channels_last(value: torch.Tensor, *arguments: Any) -> torch.Tensor:
        return function(value.permute(0, 3, 1, 2), *arguments).permute(0, 2, 3, 1)

    return channels_last


_Operator = tuple[Callable[..., torch.Tensor], int]


def _operators(scaled: Requantize) -> dict[str, _Operator]:
    """Operator -> function, and number of its arguments without the output."""
    with_layouts: dict[str, _Operator] = {
        "quantized_conv2d": (partial(_conv2d, scaled=scaled), 13),
        "quantized_depthwise_conv2d": (partial(_depthwise_conv2d, scaled=scaled), 14),
        "quantized_transpose_conv2d": (partial(_transpose_conv2d, scaled=scaled), 15),
        "quantized_avg_pool2d": (_avg_pool2d, 9),
        "quantized_max_pool2d": (_max_pool2d, 10),
    }
    by_name: dict[str, _Operator] = {
        "quantized_add": (partial(_add, scaled=scaled), 13),
        "quantized_mul": (partial(_mul, scaled=scaled), 7),
        "quantized_div": (_div, 6),
        "quantized_activation": (_activation, 2),
        "quantized_linear": (partial(_linear, scaled=scaled), 11),
        "quantized_batch_matmul": (partial(_batch_matmul, scaled=scaled), 8),
        "minimum": (torch.minimum, 2),
        "maximum": (torch.maximum, 2),
        "softmax": (_softmax, 7),
        "transpose": (_transpose, 2),
        "pad": (_pad, 4),
        **with_layouts,
        **{f"{name}_nhwc": (_nhwc(function), count) for name, (function, count) in with_layouts.items()},
    }
    return {f"cortex_m::{name}.out": operator for name, operator in by_name.items()}


_CHANNELS_LAST = (0, 2, 3, 1)
OF_CONTIGUOUS = ("quantized_linear", "quantized_batch_matmul", "softmax", "transpose")
OF_CHANNELS_LAST = (
    *("quantized_conv2d", "quantized_depthwise_conv2d", "quantized_transpose_conv2d"),
    *("quantized_avg_pool2d", "quantized_max_pool2d"),
)
_BY_CHANNEL = ("quantized_add", "quantized_mul")
"""Elementwise operators, one operand of which may have a value for each channel."""
_EXTREMES = ("minimum", "maximum")
ELEMENTWISE = (
    *("quantize_per_tensor", "dequantize_per_tensor", "quantized_div", "quantized_activation"),
    *_EXTREMES,
    *_BY_CHANNEL,
)


def repeats_wrongly(operands: Sequence[Sequence[int]], result: Sequence[int]) -> bool:
    """Whether arm_maximum_s8 and arm_minimum_s8 compute something else of operands of these sizes.

    They were wrong on Arm's firmware where an operand has one element in both of its last dimensions, and right for
    other operands that are repeated (tests/devices/test_cmsis_nn_layouts.py).
    """
    repeated = [sizes for sizes in operands if tuple(sizes) != tuple(result) and math.prod(sizes) > 1]
    return len(repeated) == len(operands) or any(tuple(sizes[-2:]) == (1, 1) for sizes in repeated)


def check_layouts(name: str, tensors: Sequence[TensorSpec]) -> None:
    """Check that the kernel of an operator computes what this host does for such layouts and sizes; it does not look.

    Args:
        name: Operator, e.g. `cortex_m::softmax.out`.
        tensors: Its arguments, the output last.

    Raises:
        ValueError: the kernel would compute something else than this host, or refuse the tensors.
    """
    operator = name.removeprefix("cortex_m::").removesuffix(".out")
    wanted: Sequence[int]
    if operator in OF_CONTIGUOUS:
        wanted, checked = range(len(tensors[0].sizes)), [tensors[0], tensors[-1]]
    elif operator in OF_CHANNELS_LAST:
        wanted, checked = _CHANNELS_LAST, [tensors[0], tensors[-1]]
    elif operator in ELEMENTWISE:
        checked = [each for each in tensors if len(each.sizes) == len(tensors[-1].sizes) and math.prod(each.sizes) > 1]
        wanted = tensors[-1].dim_order
        if len({tensor.sizes for tensor in checked}) > 1:
            wanted = _CHANNELS_LAST if operator in _BY_CHANNEL else range(len(wanted))
        if operator in _EXTREMES and repeats_wrongly([each.sizes for each in tensors[:-1]], tensors[-1].sizes):
            listed = " and ".join(str(list(each.sizes)) for each in tensors[:-1])
            raise ValueError(f"its kernel repeats the elements of operands of these sizes wrongly: {listed}")
    else:
        return
    for tensor in checked:
        if _in_order(tensor.dim_order, tensor.sizes) != _in_order(wanted, tensor.sizes):
            raise ValueError(
                f"its kernel takes memory in the order of dimensions {list(wanted)}, and the program has a tensor "
                f"{list(tensor.sizes)} in the order {list(tensor.dim_order)}"
            )


def _in_order(order: Sequence[int], sizes: Sequence[int]) -> list[int]:
    """`order` without dimensions of one element, which lie anywhere."""
    return [dimension for dimension in order if dimension < len(sizes) and sizes[dimension] != 1]


OPERATORS = _operators(requantize)
"""As ExecuTorch builds CMSIS-NN. `quantize_per_tensor` and its inverse are in operators.py: they compute as
ExecuTorch's other kernels of that name."""
ROUNDING_ONCE = _operators(requantize_rounding_once)
"""Built with CMSIS_NN_USE_SINGLE_ROUNDING, which changes arm_nn_requantize alone: softmax and averages are the same."""
