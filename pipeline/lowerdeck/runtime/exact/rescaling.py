"""TOSA's RESCALE: multiplication by a fixed-point number, rounding, zero points and saturation.

The specification computes `(value * multiplier + rounding) >> shift` in 64-bit integers. Here float64 computes the same
integers, several times faster, where that is proven: with v = value * multiplier / 2^shift, an integer multiple of
2^-shift, both the product and the sum with the rounding constant are exact while they are below 2^(53 - shift). Beyond
that, float64 rounds monotonically, so that a result outside of the output's range stays outside and saturates alike.
Other rescalings are computed in 64-bit integers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from lowerdeck.runtime.exact.accumulate import FLOAT64_LIMIT
from lowerdeck.runtime.exact.nodes import RANGES, TORCH_DTYPES, Node, Prepared

_BLOCK = 2**18
"""Elements rescaled at once on a CPU: their float64 values, 2 MiB, stay in its cache, and calls are few."""
_DOUBLE_ROUND = 3
_SINGLE_ROUND = 1


@dataclass(frozen=True, kw_only=True)
class Rescaling:
    """Parameters of a RESCALE."""

    multiplier: Tensor
    """int64 [c] or [1]"""
    shift: Tensor
    """int64 [c] or [1], 2 to 62"""
    input_zp: int
    output_zp: int
    low: int
    """Smallest result."""
    high: int
    """Largest result."""
    double_round: bool = False
    """TOSA's DOUBLE_ROUND: shifts beyond 31 round twice."""


def rescale(node: Node) -> Prepared:
    """Prepare RESCALE."""
    attributes, operand = node.attributes, node.operands[0]
    mode = attributes.scalar(1, "I")
    input_unsigned, output_unsigned = bool(attributes.scalar(3, "B")), bool(attributes.scalar(4, "B"))
    if mode not in (_SINGLE_ROUND, _DOUBLE_ROUND):
        raise node.unsupported(f"has rounding mode {mode}, which leaves the result to the implementation")
    for dtype in (operand.dtype, node.output.dtype):
        if dtype not in TORCH_DTYPES or dtype == "bool":
            raise node.unsupported(f"has element type {dtype}")
    input_zp, output_zp = node.zero_point(3), node.zero_point(4)
    source_low, source_high = operand.low, operand.high
    low, high = RANGES[node.output.dtype]
    if input_unsigned:
        bits = _unsigned_bits(node, operand.dtype)
        input_zp, source_low, source_high = input_zp % (1 << bits), 0, (1 << bits) - 1
    if output_unsigned:
        bits = _unsigned_bits(node, node.output.dtype)
        output_zp, low, high = output_zp % (1 << bits), 0, (1 << bits) - 1
    parameters = Rescaling(
        multiplier=node.numbers(1),
        shift=node.numbers(2),
        input_zp=input_zp,
        output_zp=output_zp,
        low=low,
        high=high,
        double_round=mode == _DOUBLE_ROUND and bool(attributes.scalar(0, "B")),
    )
    if (
        int(parameters.multiplier.min()) < 0
        or not 2 <= int(parameters.shift.min()) <= int(parameters.shift.max()) <= 62
    ):
        raise node.unsupported("has a negative multiplier, or a shift outside of 2 to 62")
    largest = max(abs(source_low - input_zp), abs(source_high - input_zp))
    compute = rescaler(parameters, largest, TORCH_DTYPES[node.output.dtype], node.device)
    unsigned = _UNSIGNED.get(operand.dtype) if input_unsigned else None

    def step(inputs: Sequence[Tensor]) -> Tensor:
        values = inputs[0]
        if unsigned is not None:
            values = values.view(unsigned).to(torch.int32)
        return compute(values)

    return Prepared(step, *bounds(parameters, source_low, source_high))


_UNSIGNED = {"int8": torch.uint8, "int16": torch.uint16}


def _unsigned_bits(node: Node, dtype: str) -> int:
    if dtype not in _UNSIGNED:
        raise node.unsupported(f"reads or writes {dtype} as unsigned")
    return 8 if dtype == "int8" else 16


def bounds(parameters: Rescaling, low: int, high: int) -> tuple[int, int]:
    """Bounds of the results for inputs from `low` to `high`, stored as signed integers."""
    if parameters.low == 0:
        half = (parameters.high + 1) // 2
        return -half, half - 1  # unsigned results are stored as the signed integers with the same bits
    multipliers, shifts = parameters.multiplier.tolist(), parameters.shift.tolist()
    largest = max(abs(low - parameters.input_zp), abs(high - parameters.input_zp))
    # One for the rounding, one more for the second rounding.
    reached = max((largest * multiplier >> shift) + 2 for multiplier, shift in zip(multipliers, shifts, strict=True))
    return (
        max(parameters.low, parameters.output_zp - reached),
        min(parameters.high, parameters.output_zp + reached),
    )


def rescaler(
    parameters: Rescaling, largest: int, dtype: torch.dtype, device: torch.device
) -> Callable[[Tensor], Tensor]:
    """A function that rescales integers in any dtype [... x c] to `dtype` [... x c].

    Args:
        parameters: What to compute.
        largest: Upper bound of the absolute values of the inputs, less their zero point.
        dtype: The results' element type; unsigned results are stored in the signed type of their size.
        device: Where the inputs are.
    """
    fast = float64_is_exact(parameters, largest)
    compute = _float64(parameters, largest, device) if fast else _int64(parameters, device)
    scratch = torch.float64 if fast else torch.int64

    def run(values: Tensor) -> Tensor:
        result = torch.empty(values.shape, dtype=dtype, device=values.device)
        if not values.numel():
            return result
        channels = values.shape[-1] if values.dim() > 1 else 1
        source, target = values.reshape(-1, channels), result.view(-1, channels)
        rows = max(1, _BLOCK // channels) if device.type == "cpu" else len(source)
        if len(source) <= rows:
            target.copy_(_stored(compute(source.to(scratch, copy=True)), parameters))
            return result
        block = torch.empty((rows, channels), dtype=scratch, device=values.device)
        for start in range(0, len(source), rows):
            part = source[start : start + rows]
            target[start : start + rows].copy_(_stored(compute(block[: len(part)].copy_(part)), parameters))
        return result

    return run


def float64_is_exact(parameters: Rescaling, largest: int) -> bool:
    """Whether float64 yields the specified integers for inputs of at most `largest`; see the module's proof."""
    furthest = max(abs(parameters.low - parameters.output_zp), abs(parameters.high - parameters.output_zp)) + 2
    offset = abs(parameters.output_zp) + 2
    for multiplier, shift in zip(parameters.multiplier.tolist(), parameters.shift.tolist(), strict=True):
        whole = largest * multiplier + (offset << shift)
        saturating = (furthest + offset) << shift
        if min(whole, saturating) > FLOAT64_LIMIT:
            return False
    return True


def _shifts_afterwards(parameters: Rescaling, largest: int) -> bool:
    """Whether the zero point of the inputs may be subtracted as a part of the rounding constant.

    All products and sums are multiples of 2^-shift; here they all stay below 2^(53 - shift), so that they are exact.
    """
    zero_point, offset = abs(parameters.input_zp), abs(parameters.output_zp) + 2
    return all(
        (largest + 2 * zero_point) * multiplier + (offset << shift) <= FLOAT64_LIMIT
        for multiplier, shift in zip(parameters.multiplier.tolist(), parameters.shift.tolist(), strict=True)
    )


def _float64(parameters: Rescaling, largest: int, device: torch.device) -> Callable[[Tensor], Tensor]:
    exponents = -parameters.shift
    factor = torch.ldexp(parameters.multiplier.to(torch.float64), exponents).to(device)
    rounding = torch.full(factor.shape, 0.5 + parameters.output_zp, dtype=torch.float64, device=device)
    twice = parameters.double_round and bool((parameters.shift > 31).any())
    quarter = torch.ldexp(torch.ones_like(factor), (30 + exponents).to(device))
    second = torch.where(parameters.shift.to(device) > 31, quarter, 0)
    input_zp, low, high = parameters.input_zp, parameters.low, parameters.high
    if input_zp and not twice and _shifts_afterwards(parameters, largest):
        rounding, input_zp = rounding - input_zp * factor, 0

    @cache
    def by_channel(channels: int) -> tuple[Tensor, Tensor]:
        # addcmul takes twice as long for operands of one element.
        return factor.expand(channels).contiguous(), rounding.expand(channels).contiguous()

    def compute(values: Tensor) -> Tensor:
        factor, rounding = by_channel(values.shape[-1])
        if input_zp:
            values.sub_(input_zp)
        if twice:
            # The sign of zero does not matter: the rounding constants alone never reach the next integer.
            sign = torch.where(values >= 0, second, -second)
            torch.addcmul(rounding, values, factor, out=values).add_(sign)
        else:
            torch.addcmul(rounding, values, factor, out=values)
        return values.floor_().clamp_(low, high)

    return compute


def _int64(parameters: Rescaling, device: torch.device) -> Callable[[Tensor], Tensor]:
    multiplier, shift = parameters.multiplier.to(device), parameters.shift.to(device)
    single = torch.ones_like(shift) << (shift - 1)
    second = torch.where(shift > 31, 1 << 30, 0)

    def compute(values: Tensor) -> Tensor:
        values.sub_(parameters.input_zp)
        rounding = torch.where(values >= 0, single + second, single - second) if parameters.double_round else single
        values.mul_(multiplier).add_(rounding).bitwise_right_shift_(shift)
        return values.add_(parameters.output_zp).clamp_(parameters.low, parameters.high)

    return compute


def _stored(values: Tensor, parameters: Rescaling) -> Tensor:
    """Unsigned results as the signed integers with the same bits."""
    if parameters.low == 0:
        values = torch.where(values > parameters.high // 2, values - (parameters.high + 1), values)
    return values
