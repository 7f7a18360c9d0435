"""LiteRT's int8 softmax: gemmlowp's fixed-point exponential and reciprocal (reference/softmax.h, fixedpoint.h).

The exponentials are a table over the difference to the row's maximum. Per row, only the reciprocal of their sum and one
product for each element are left, in 64-bit integers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from lowerdeck.runtime.exact.litert_graph import Operator
from lowerdeck.runtime.exact.litert_layers import check_int8
from lowerdeck.runtime.exact.litert_rescale import quantize_multiplier

_DIFFERENCE_BITS = 5
"""Integer bits of a scaled difference."""
_SUM_BITS = 12
"""Integer bits of a sum of exponentials."""
_ONE = 2**31 - 1
"""1 with no integer bits, saturated."""
_BARREL = ((-2, 1672461947), (-1, 1302514674), (0, 790015084), (1, 290630308), (2, 39332535), (3, 720401), (4, 242))
"""(exponent e, exp(-2^e) with no integer bits)."""


def softmax(operator: Operator, device: torch.device) -> Callable[[Sequence[Tensor]], Tensor]:
    """SOFTMAX over the last dimension. Slot: beta.

    Raises:
        UnsupportedGraphError: it is not int8, or a row is so long that the sum overflows.
    """
    source, output = operator.input(0), operator.outputs[0]
    check_int8(operator, source)
    if source.shape[-1] >= 2**_SUM_BITS:
        raise operator.unsupported(f"rows of {source.shape[-1]} elements")
    exponentials = _exponentials(float(operator.options.scalar(0, "f")) * source.scale).to(device)
    addends = _rounding_shift(exponentials, _SUM_BITS).clamp(min=0)

    def normalize(inputs: Sequence[Tensor]) -> Tensor:
        values = inputs[0]
        index = (values.amax(-1, keepdim=True) - values).to(torch.int64)
        reciprocals, exponents = _reciprocal(addends[index].sum(-1, keepdim=True))
        found = exponentials[index]
        results = _rounding_shift(_high_product(reciprocals, found), exponents) - 128
        results = torch.where(found < 0, -128, results.clamp(-128, 127))
        return (results - output.zero_point).float()

    return normalize


def _exponentials(scale: float) -> Tensor:
    """exp of minus each difference from 0 to 255, with no integer bits; -1 where the kernel takes it for 0."""
    real = min(scale * 2.0 ** (31 - _DIFFERENCE_BITS), 2.0**31 - 1.0)
    multiplier, shift = (int(part) for part in quantize_multiplier(np.array(real)))
    radius = ((2**_DIFFERENCE_BITS - 1) << (31 - _DIFFERENCE_BITS)) >> max(shift, 0)
    differences = torch.arange(256)
    used = differences <= radius
    scaled = _high_product(torch.where(used, -differences, 0) << max(shift, 0), multiplier)
    return torch.where(used, _exp_of_negative(scaled), -1)


def _exp_of_negative(values: Tensor) -> Tensor:
    """gemmlowp's exp_on_negative_values: int64 with 5 integer bits -> int64 with none."""
    fraction_bits = 31 - _DIFFERENCE_BITS
    quarter = 1 << (fraction_bits - 2)
    reduced = (values & (quarter - 1)) - quarter
    result = _exp_of_quarter(reduced << _DIFFERENCE_BITS)
    remainder = reduced - values
    for exponent, factor in _BARREL:
        bit = 1 << (fraction_bits + exponent)
        result = torch.where((remainder & bit) != 0, _high_product(result, factor), result)
    return torch.where(values == 0, _ONE, result)


def _exp_of_quarter(values: Tensor) -> Tensor:
    """gemmlowp's exp_on_interval_between_negative_one_quarter_and_0_excl, by a Taylor series around -1/8."""
    x = values + (1 << 28)
    x2 = _high_product(x, x)
    x3, x4 = _high_product(x2, x), _high_product(x2, x2)
    rest = _high_product(_rounding_shift(x4, 2) + x3, 715827883) + x2
    return 1895147668 + _high_product(1895147668 + torch.zeros_like(x), x + _rounding_shift(rest, 1))


def _reciprocal(sums: Tensor) -> tuple[Tensor, Tensor]:
    """gemmlowp's reciprocal of sums with 12 integer bits, and the exponent by which the products are shifted."""
    headroom = 32 - torch.frexp(sums.double()).exponent  # leading zeros of 32 bits
    fraction = (sums << headroom) - (1 << 31)
    half = fraction + _ONE
    half = torch.div(half + torch.where(half >= 0, 1, -1), 2, rounding_mode="trunc")
    x = 1515870810 + _high_product(half, -1010580540)
    for _ in range(3):
        x = x + (_high_product(x, (1 << 29) - _high_product(half, x)) << 2).clamp(-(2**31), 2**31 - 1)
    return (x << 1).clamp(-(2**31), 2**31 - 1), _SUM_BITS - headroom + 31 - 8


def _high_product(left: Tensor, right: Tensor | int) -> Tensor:
    """SaturatingRoundingDoublingHighMul; operands below 2^31 in magnitude never saturate."""
    return (left * right + (1 << 30)) >> 31


def _rounding_shift(values: Tensor, exponent: Tensor | int) -> Tensor:
    """RoundingDivideByPOT: halves away from zero."""
    mask = (1 << exponent) - 1
    return (values >> exponent) + ((values & mask) > (mask >> 1) + (values < 0))
