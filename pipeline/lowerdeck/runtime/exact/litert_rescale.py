"""LiteRT's rescaling of int32 accumulators to int8, by floating-point multiplications that are proven exact.

LiteRT's reference kernels multiply by a 31-bit integer and round twice: the product's upper 32 bits, then a shift
(MultiplyByQuantizedMultiplier in tflite/kernels/internal/common.h, compiled without TFLITE_SINGLE_ROUNDING, as
LiteRT 2.3's wheels are). FULLY_CONNECTED rounds once, in float64. 64-bit integers would be exact and slow.

Both are monotone in the accumulator, and so is `round(accumulator * factor)` in floating point. Two monotone functions
with values from `low` to `high` are equal everywhere as soon as they step at the same accumulators. There are at most
255 steps, so that each channel's factors are tested at both sides of each step: in float32, else in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lowerdeck.runtime.exact.litert_graph import Numbers

_WINDOW = 4
"""Corrections of a step's accumulator from where the real multiplier puts it: rounding twice moves it by 1."""
_BLOCK_ELEMENTS = 2**17
"""Elements that are taken through all multiplications before the next ones, so that they stay in the processor's
cache."""
_MAX_EXTRA = 0.25
"""Share of channels beyond which all are computed in float64, rather than those alone that need it."""
_NUDGES = (0, 1, -1, 2, -2, 3, -3, 4, -4, 5, -5, 6, -6)
"""Tested factors: the real one times 1 + n/2 of the smallest relative difference between two numbers."""


@dataclass(frozen=True)
class Rescaling:
    """The integer function that LiteRT applies to accumulators, one for each output channel."""

    function: Callable[[Numbers], Numbers]
    """int64 [c x n] -> int64 [c x n], monotone in each element, before zero point and saturation."""
    factors: Sequence[Numbers]
    """float64 [c] each: multiplying by these in turn, rounding after each, approximates `function`."""
    ties_up: bool = False
    """Whether the last rounding takes ties up, rather than away from zero."""

    @property
    def multiplier(self) -> Numbers:
        """The product of all factors, float64 [c]."""
        product: Numbers = np.ones(1)
        for factor in self.factors:
            product = product * factor
        return product


def quantize_multiplier(real: Numbers) -> tuple[Numbers, Numbers]:
    """QuantizeMultiplier of tflite/kernels/internal/quantization_util.cc.

    Args:
        real: float64 [c], not negative.

    Returns:
        The multiplier with 31 fraction bits and the exponent of two, int64 [c] each.
    """
    fraction, shift = np.frexp(real)
    multiplier = np.floor(fraction * 2.0**31 + 0.5).astype(np.int64)
    carries = multiplier == 2**31
    multiplier, shift = np.where(carries, multiplier // 2, multiplier), shift.astype(np.int64) + carries
    vanishes = (shift < -31) | (real == 0)
    return np.where(vanishes, 0, multiplier), np.where(vanishes, 0, shift)


def fixed_point(multiplier: Numbers, shift: Numbers, *, ties_up: bool = False) -> Rescaling:
    """MultiplyByQuantizedMultiplier with two roundings, for multipliers int64 [c] and shifts int64 [c].

    The second rounding takes ties away from zero, or up with `ties_up`, as the kernels of optimized layers do.
    """
    left, right = np.maximum(shift, 0)[:, None], np.maximum(-shift, 0)[:, None]

    def function(accumulators: Numbers) -> Numbers:
        # The doubling high product: ties go up, because the kernel adds 1 - 2^30 to a negative one and truncates.
        high = ((accumulators << left) * multiplier[:, None] + (1 << 30)) >> 31
        mask = (1 << right) - 1
        result: Numbers = (high >> right) + ((high & mask) > (mask >> 1) + (0 if ties_up else high < 0))
        return result

    first = multiplier * np.exp2(np.maximum(shift, 0) - 31.0)
    factors = (first,) if (shift >= 0).all() else (first, np.exp2(np.minimum(shift, 0)))
    return Rescaling(function, factors, ties_up)


def from_scales(real: Numbers, *, ties_up: bool = False) -> Rescaling:
    """The rescaling by real multipliers float64 [c], as convolutions prepare it; see `fixed_point`."""
    return fixed_point(*quantize_multiplier(real), ties_up=ties_up)


def in_float64(real: Numbers) -> Rescaling:
    """The rescaling of FULLY_CONNECTED's reference kernel: C's round() of a float64 product, for float64 [c]."""

    def function(accumulators: Numbers) -> Numbers:
        product = accumulators * real[:, None]
        result: Numbers = (np.sign(product) * np.floor(np.abs(product) + 0.5)).astype(np.int64)
        return result

    return Rescaling(function, (real,))


class Rescale:
    """Rescales accumulators and saturates."""

    def __init__(self, rescaling: Rescaling, *, bound: int, low: int, high: int, device: torch.device) -> None:
        """Choose the arithmetic and prove it.

        Args:
            rescaling: What LiteRT computes.
            bound: Upper bound of the accumulators' absolute values.
            low: Smallest result, less the output's zero point.
            high: Largest result, less the output's zero point.
            device: Where the accumulators are.

        Raises:
            ArithmeticError: no floating-point arithmetic gives LiteRT's integers.
        """
        if bound * float(np.exp2(np.ceil(np.log2(np.maximum(rescaling.multiplier, 1)))).max()) >= 2**31:
            raise ArithmeticError(f"accumulators of up to {bound} overflow LiteRT's int32 when they are multiplied")
        self.low, self.high = low, high
        steps = _steps(rescaling, bound, low, high)
        everything = torch.arange(len(steps.accumulators))
        self._num_multipliers = len(everything)
        in_float32 = _Arithmetic(torch.float32, is_floored=rescaling.ties_up)
        main, failed = _proven(rescaling, steps, everything, in_float32, device)
        if len(failed) > _MAX_EXTRA * len(everything):
            in_float64 = _Arithmetic(torch.float64, is_floored=rescaling.ties_up)
            main, failed = _proven(rescaling, steps, everything, in_float64, device)
        self._main, self._extra, self._extra_channels = main, main, failed.to(device)
        for arithmetic in _LAST_RESORTS if len(failed) else ():
            self._extra, remaining = _proven(rescaling, steps, failed, arithmetic, device)
            if not len(remaining):
                break
        else:
            if len(failed):
                raise ArithmeticError("no multiplication in float64 gives LiteRT's integers")

    def __call__(self, accumulators: Tensor) -> Tensor:
        """Rescaled integers, less the output's zero point, as float32 [... x c].

        Args:
            accumulators: Numbers, as float32 or float64 [... x c], contiguous; float32 is overwritten. With one
                multiplier in place of c, it applies to all.
        """
        channels = self._num_multipliers
        rows = accumulators.view(-1, channels)
        in_place = accumulators.dtype == torch.float32
        result = rows if in_place else torch.empty_like(rows, dtype=torch.float32)
        step = max(1, len(rows) if rows.is_cuda else _BLOCK_ELEMENTS // channels)
        shape = (min(step, len(rows)), channels)
        dtype = self._main.arithmetic.dtype
        scratch = None if in_place and dtype == torch.float32 else rows.new_empty(shape, dtype=dtype)
        for start in range(0, len(rows), step):
            block, target = rows[start : start + step], result[start : start + step]
            extra = self._extra_columns(block)
            values = block if scratch is None else scratch[: len(block)].copy_(block)
            self._main.apply(values)
            if scratch is not None:
                target.copy_(values)
            if extra is not None:
                target.index_copy_(1, self._extra_channels, extra)
            target.clamp_(self.low, self.high)
        return result.view(accumulators.shape)

    def _extra_columns(self, block: Tensor) -> Tensor | None:
        """The channels for which float32 is not exact, float32 [n x extra]; None where there are none."""
        if not len(self._extra_channels):
            return None
        columns = block.index_select(1, self._extra_channels).to(self._extra.arithmetic.dtype)
        return self._extra.apply(columns).float()


@dataclass(frozen=True)
class _Arithmetic:
    """How a product is rounded."""

    dtype: torch.dtype
    is_floored: bool = False
    """Whether products are rounded by adding 1/2 and rounding down, which takes longer; the last one only where its
    ties go up."""


_LAST_RESORTS = (_Arithmetic(torch.float64), _Arithmetic(torch.float64, is_floored=True))


@dataclass(frozen=True)
class _Multiplication:
    """Factors for channels, and how their products are rounded."""

    factors: list[Tensor]
    """[c] each."""
    arithmetic: _Arithmetic
    ties_up: bool

    def apply(self, values: Tensor) -> Tensor:
        """Multiply [n x c] in place."""
        first, *others = self.factors
        values.mul_(first)
        if self.arithmetic.is_floored:
            values.add_(0.5).floor_()
        else:
            values.round_()
        for factor in others:
            values.mul_(factor)
            if self.ties_up:
                values.add_(0.5).floor_()
            else:
                values.round_()
        return values


@dataclass(frozen=True)
class _Steps:
    """Where an integer function of accumulators within -bound ... bound steps, for c channels and k steps."""

    bound: int
    results: Numbers
    """The result that each step reaches, int64 [k]."""
    accumulators: Numbers
    """The smallest accumulator with such a result, int64 [c x k]; `bound + 1` where there is none."""


def _steps(rescaling: Rescaling, bound: int, low: int, high: int) -> _Steps:
    """The steps to all results from `low + 1` to `high`.

    Raises:
        ArithmeticError: the function is not near its multiplier.
    """

    def rescaled(accumulators: Numbers) -> Numbers:
        return rescaling.function(np.clip(accumulators, -bound, bound))

    multiplier = np.maximum(rescaling.multiplier, 2.0**-40)[:, None]
    results = np.arange(low + 1, high + 1)
    first = np.clip(np.ceil((results - 0.5) / multiplier), -bound, bound + 1).astype(np.int64)
    for _ in range(_WINDOW):
        late = (first > -bound) & (rescaled(first - 1) >= results)
        early = (first <= bound) & (rescaled(first) < results)
        if not (late | early).any():
            return _Steps(bound, results, first)
        first += early.astype(np.int64) - late
    raise ArithmeticError("LiteRT's rescaling steps elsewhere than its multiplier says")


def _proven(
    rescaling: Rescaling, steps: _Steps, channels: Tensor, arithmetic: _Arithmetic, device: torch.device
) -> tuple[_Multiplication, Tensor]:
    """Factors for `channels` whose products step where `rescaling` steps, and the channels that have none.

    The kernels that `Rescale` uses compute the products, on its device.
    """
    dtype = arithmetic.dtype
    eps = torch.finfo(dtype).eps
    real, *others = (_spread(factor, len(steps.accumulators))[channels] for factor in rescaling.factors)
    # The last rounding takes ties away from zero, and torch's to even, so that its product has to be a little larger.
    last = 1 if rescaling.ties_up else 1 + 2 * eps
    rest = [(factor * last).to(device, dtype) for factor in others]
    chosen = real.to(device, dtype)
    left = torch.arange(len(channels))
    for nudge in _NUDGES if steps.bound <= 1 / eps else ():
        candidate = (real[left] * (1 + nudge * eps / 2)).to(device, dtype)
        factors = [candidate, *(factor[left.to(device)] for factor in rest)]
        passes = _steps_equal(steps, channels[left], _Multiplication(factors, arithmetic, rescaling.ties_up))
        chosen[left[passes].to(device)] = candidate[passes.to(device)]
        left = left[~passes]
        if not len(left):
            break
    return _Multiplication([chosen, *rest], arithmetic, rescaling.ties_up), channels[left]


def _spread(factor: Numbers, channels: int) -> Tensor:
    return torch.from_numpy(np.broadcast_to(factor, channels).copy())


def _steps_equal(steps: _Steps, channels: Tensor, multiplication: _Multiplication) -> Tensor:
    """For every one of `channels`, whether `multiplication` steps where `steps` are: bool [channels]."""
    first = torch.from_numpy(steps.accumulators)[channels].T.contiguous()
    wanted = torch.from_numpy(steps.results)[:, None]
    device, dtype = multiplication.factors[0].device, multiplication.arithmetic.dtype
    at_step, before_step = (
        multiplication.apply(accumulators.clamp(-steps.bound, steps.bound).to(device, dtype)).cpu()
        for accumulators in (first, first - 1)
    )
    reached = (at_step >= wanted) | (first > steps.bound)
    return (reached & ((before_step < wanted) | (first == -steps.bound))).all(0)
