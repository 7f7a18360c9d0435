"""Cortex-M's layers for batches: CMSIS-NN's integers by floating-point sums and multiplications that are proven exact.

`lowerdeck.runtime.cmsis_nn`, the reference, computes the same in 64-bit integers, which takes several times as long; it
also describes the operators' arguments. CMSIS-NN rescales accumulators as LiteRT's reference kernels do, if it is not
built to round once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lowerdeck.runtime.cmsis_nn import ADD_SHIFT
from lowerdeck.runtime.exact.accumulate import Convolution, Geometry
from lowerdeck.runtime.exact.litert_graph import Numbers
from lowerdeck.runtime.exact.litert_rescale import Rescale, Rescaling, fixed_point

Step = Callable[[Sequence[Any]], Tensor]
"""Arguments of an operator, with tensors [b x sizes], or [1 x sizes] where constant -> its result [b x sizes]."""
COMPUTED = object()
"""Stands for a tensor that a program computes, or scratch memory."""
_Scaled = Callable[[Numbers, Numbers], Rescaling]
_Prepare = Callable[[Sequence[Any], Sequence[int], _Scaled, torch.device], Step]


def prepare(
    operator: str, arguments: Sequence[Any], sizes: Sequence[int], device: torch.device, *, rounds_once: bool = False
) -> Step | None:
    """The operator as a function of batches; None where it is another one, or nothing is proven for these arguments.

    Args:
        operator: Name in programs, e.g. `cortex_m::quantized_conv2d.out`.
        arguments: Without the output; COMPUTED for tensors that are.
        sizes: Sizes of the first argument.
        device: Where to execute it.
        rounds_once: Whether CMSIS-NN is built with CMSIS_NN_USE_SINGLE_ROUNDING.
    """
    prepared, may_be_computed = _PREPARE.get(operator.removeprefix("cortex_m::").removesuffix(".out"), (None, ()))
    computed = {position for position, value in enumerate(arguments) if value is COMPUTED}
    if prepared is None or not computed.issubset(may_be_computed):
        return None
    try:
        return prepared(arguments, sizes, _rounded_once if rounds_once else fixed_point, device)
    except ArithmeticError:
        return None


def _rounded_once(multiplier: Numbers, shift: Numbers) -> Rescaling:
    """arm_nn_requantize with CMSIS_NN_USE_SINGLE_ROUNDING: ties go up."""

    def function(accumulators: Numbers) -> Numbers:
        result: Numbers = (((accumulators * multiplier[:, None]) >> (30 - shift)[:, None]) + 1) >> 1
        return result

    return Rescaling(function, (multiplier * np.exp2(shift - 31.0),), ties_up=True)


def _numbers(values: Any) -> Numbers:
    found: Numbers = np.asarray(values, dtype=np.int64).reshape(-1)
    return found


def _reached(offset: int) -> int:
    """Largest absolute value of an int8 plus `offset`."""
    return max(abs(offset - 128), abs(offset + 127))


def _images(
    weights: Tensor, bias: Tensor | None, geometry: Geometry, offsets: tuple[int, int], rescaling: Rescaling,
    limits: tuple[int, int], device: torch.device,
) -> Callable[[Tensor], Tensor]:  # fmt: skip
    """A convolution of int8 [n x c x h x w].

    Args:
        weights: Integers [o x c/groups x kernel], or [c x o/groups x kernel] where transposed.
        bias: int32 [o].
        geometry: Of the convolution.
        offsets: What is added to inputs and to results.
        rescaling: Of the sums.
        limits: Smallest and largest result.
        device: Where inputs are.
    """
    given, added = offsets
    summed = Convolution(weights, bias, geometry, largest=_reached(given)).to(device)
    low, high = (limit - added for limit in limits)
    rescale = Rescale(rescaling, bound=summed.bound, low=low, high=high, device=device)

    def compute(images: Tensor) -> Tensor:
        values = images.to(torch.float32, memory_format=torch.channels_last).add_(given)
        sums = summed(values).permute(0, 2, 3, 1).contiguous()
        return rescale(sums).add_(added).to(torch.int8).permute(0, 3, 1, 2)

    return compute


def _of_images(compute: Callable[[Tensor], Tensor], *, is_nhwc: bool) -> Step:
    def step(arguments: Sequence[Any]) -> Tensor:
        given: Tensor = arguments[0]
        images = given.flatten(0, 1)
        result = compute(images.permute(0, 3, 1, 2)).permute(0, 2, 3, 1) if is_nhwc else compute(images)
        return result.view(*given.shape[:2], *result.shape[1:])

    return step


def _convolution(
    arguments: Sequence[Any], sizes: Sequence[int], scaled: _Scaled, device: torch.device,
    *, is_depthwise: bool = False, is_nhwc: bool = False,
) -> Step:  # fmt: skip
    """quantized_conv2d and quantized_depthwise_conv2d, which has one argument more: the multiplier of the depth."""
    _, weight, bias, stride, padding, dilation, *rest = arguments
    offset, added, multipliers, shifts, low, high, _ = rest[1:] if is_depthwise else rest
    channels = sizes[3] if is_nhwc else sizes[1]
    groups = channels if is_depthwise else channels // weight.shape[3]
    kernel = weight.permute(3, 0, 1, 2) if is_depthwise else weight.permute(0, 3, 1, 2)
    geometry = Geometry(
        stride=tuple(stride),
        padding=tuple(amount for amount in padding for _ in range(2)),
        dilation=tuple(dilation),
        groups=groups,
    )
    rescaling = scaled(_numbers(multipliers), _numbers(shifts))
    compute = _images(kernel, bias, geometry, (offset, added), rescaling, (low, high), device)
    return _of_images(compute, is_nhwc=is_nhwc)


def _linear(arguments: Sequence[Any], sizes: Sequence[int], scaled: _Scaled, device: torch.device) -> Step:
    _, weights, bias, kernel_sum, offset, weight_offset, added, multipliers, shifts, high, low = arguments
    if kernel_sum is not None:
        bias, offset = kernel_sum.flatten(), 0
    moved = weights.to(torch.int64)[..., None, None] + weight_offset
    geometry = Geometry(stride=(1, 1), padding=(0, 0, 0, 0), dilation=(1, 1))
    rescaling = scaled(_numbers(multipliers[:1]), _numbers(shifts[:1]))
    compute = _images(moved, bias, geometry, (offset, added), rescaling, (low, high), device)

    def step(arguments: Sequence[Any]) -> Tensor:
        rows: Tensor = arguments[0]
        image = rows.reshape(1, -1, 1, rows.shape[-1]).permute(0, 3, 1, 2)
        return compute(image).permute(0, 2, 3, 1).reshape(*rows.shape[:-1], -1)

    return step


def _sum(arguments: Sequence[Any], sizes: Sequence[int], scaled: _Scaled, device: torch.device) -> Step:
    """quantized_add: a table for each operand, whose 256 values are brought to a common scale."""
    *operands, zero, multiplier, shift, low, high = arguments
    tables = [_on_common_scale(operands[start + 1 : start + 4], scaled) for start in (0, 4)]
    bound = sum(int(np.abs(table).max()) for table in tables)
    rescale = Rescale(
        scaled(_numbers(multiplier), _numbers(shift)), bound=bound, low=low - zero, high=high - zero, device=device
    )
    first, second = (torch.from_numpy(table).to(device, torch.float64) for table in tables)

    def step(arguments: Sequence[Any]) -> Tensor:
        total = first[arguments[0].to(torch.int64) + 128] + second[arguments[4].to(torch.int64) + 128]
        return rescale(total.contiguous()).add_(zero).to(torch.int8)

    return step


def _on_common_scale(parameters: Sequence[int], scaled: _Scaled) -> Numbers:
    """What each of the 256 values of an operand contributes, by its zero point, multiplier and shift."""
    zero, multiplier, shift = parameters
    shifted = (np.arange(-128, 128, dtype=np.int64) - zero) << ADD_SHIFT
    table: Numbers = scaled(_numbers(multiplier), _numbers(shift)).function(shifted[None])[0]
    return table


def _product(arguments: Sequence[Any], sizes: Sequence[int], scaled: _Scaled, device: torch.device) -> Step:
    """quantized_mul."""
    _, left_zero, _, right_zero, zero, multiplier, shift = arguments
    bound = _reached(-left_zero) * _reached(-right_zero)
    rescaling = scaled(_numbers(multiplier), _numbers(shift))
    rescale = Rescale(rescaling, bound=bound, low=-128 - zero, high=127 - zero, device=device)

    def step(arguments: Sequence[Any]) -> Tensor:
        left, right = (arguments[index].to(torch.float32) - arguments[index + 1] for index in (0, 2))
        return rescale((left * right).contiguous()).add_(zero).to(torch.int8)

    return step


_PREPARE: dict[str, tuple[_Prepare, Collection[int]]] = {
    "quantized_conv2d": (_convolution, (0, 12)),
    "quantized_conv2d_nhwc": (partial(_convolution, is_nhwc=True), (0, 12)),
    "quantized_depthwise_conv2d": (partial(_convolution, is_depthwise=True), (0, 13)),
    "quantized_depthwise_conv2d_nhwc": (partial(_convolution, is_depthwise=True, is_nhwc=True), (0, 13)),
    "quantized_linear": (_linear, (0,)),
    "quantized_add": (_sum, (0, 4)),
    "quantized_mul": (_product, (0, 2)),
}
"""By operator: how to prepare it, and which of its arguments may be computed."""
