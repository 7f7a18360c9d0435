"""Errors of outputs, in units that suit their element types, and the errors that rounding explains."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import torch

from lowerdeck.contracts.conformance import ErrorUnit, OutputError
from lowerdeck.contracts.errors import LowerdeckError

Pair = tuple[torch.Tensor, torch.Tensor]
"""A reference and what is compared with it."""
_OF_FLOAT32 = 1e-3
"""XNNPACK's exponential functions are approximations with about 1e-5; float32 sums differ in the order of terms."""
_DRAWS_OF_ALL = 5
"""How many roundings are tried on all inputs."""
_REGION = 32
"""Fewest elements whose mean error is compared with that of the same elements where roundings are drawn: of fewer, it
varies too much from one drawing to the next."""
OF_INTEGERS = 5e-2
"""Relative error of floats that are computed from integers, of which some may be a step off."""


def precision_of_types(dtypes: Iterable[torch.dtype]) -> float:
    """The relative error that one rounding explains where floats of these types are computed.

    Kernels round to float16 and bfloat16 at other places than PyTorch, whose kernels compute in float32 in between: by
    half of the distance between two numbers each time.
    """
    return max([_OF_FLOAT32, *(2 * torch.finfo(dtype).eps for dtype in dtypes if dtype.is_floating_point)])


def output_error(
    name: str,
    pairs: Sequence[Pair],
    scale: float | None,
    depth: int,
    *,
    precision: float,
    known: OutputError | None = None,
    rounded: Sequence[Callable[[int], Pair]] = (),
) -> OutputError:
    """Compare an output with its reference.

    Args:
        name: Node whose result it is.
        pairs: (reference, actual) for every input that was tried; each pair has one shape and kind of element.
        scale: One step of the output's quantization in its own units (1 where it consists of the integers
            themselves); None for values without a quantization.
        depth: Number of roundings in succession that led to it.
        precision: The relative error that one rounding explains, of values without a quantization: `precision_of_types`
            the types that it is computed in, or OF_INTEGERS.
        known: Of the integers that this output is made of, where they were compared with their reference before: its
            bounds hold here, too.
        rounded: Each computes the pair at a given place with the reference's own integers rounded in another way as
            actual values. They raise the bounds: an activation function may turn one step at its input into several at
            its output, and one step decides which of two nearly equal values is the largest. Called only while the
            error exceeds what `depth` and those before explain, in all elements or in a region of them, because each
            executes the reference once more: all of them on the worst pair of a quantized output, and the first five
            on all pairs of others, whose errors are relative to the largest of all values.

    Returns:
        The error of all pairs; of a quantized output that of the worst where roundings were tried.

    Raises:
        LowerdeckError: the shapes of a pair differ.
    """
    error = _error_within(name, pairs, scale, depth, precision=precision)
    by_depth = error
    if known is not None and known.unit == error.unit:
        error = _within(error, by_depth, known.bound, known.mean_bound)
    if error.excess <= 1 or not rounded:
        return error
    places = range(len(pairs))
    if scale is None:
        rounded = rounded[:_DRAWS_OF_ALL]
    else:
        alone = [_error_within(name, [pair], scale, depth, precision=precision) for pair in pairs]
        worst = max(places, key=lambda place: alone[place].excess)
        by_depth, places = alone[worst], range(worst, worst + 1)
    error = _within(by_depth, by_depth, error.bound, error.mean_bound)
    regions = None if scale is None else _Regions(pairs[places[0]], scale, by_depth.mean_bound)
    for round_otherwise in rounded:
        if error.excess <= 1 and not error.is_uneven:
            break
        others = list(map(round_otherwise, places))
        other = _error_within(name, others, scale, depth, precision=precision)
        if not math.isfinite(other.max_error):  # it left the domain of a function, and explains nothing
            continue
        error = _within(error, by_depth, other.max_error, other.mean_error)
        if regions is not None:
            error = replace(error, unevenness=regions.unevenness(others[0]))
    return error


class _Regions:
    """Mean errors of neighbours along each dimension: of rows, of columns, of channels ...

    A concatenation puts what is computed apart into such regions, and one has all errors of what is wrong in it.
    """

    def __init__(self, pair: Pair, scale: float, explained: float) -> None:
        """Of a reference and what is compared with it, whose step is `scale`; `explained` steps are, of any of them."""
        self._scale = scale
        self._means = self._means_of(pair)
        self._explained = torch.full_like(self._means, explained)

    def unevenness(self, rounded: Pair) -> float:
        """The largest mean relative to what is explained, to which this rounding, and those before, add theirs."""
        self._explained = torch.maximum(self._explained, self._means_of(rounded))
        return float((self._means / self._explained).max())

    def _means_of(self, pair: Pair) -> torch.Tensor:
        """Of _REGION elements or more each, if there are so many, in steps: float64 [n]."""
        difference = (pair[1].double() - pair[0].double()).abs().nan_to_num(nan=math.inf)
        errors = difference.reshape(difference.shape or (1,)) / self._scale
        means = list[torch.Tensor]()
        for dim, size in enumerate(errors.shape):
            least = math.ceil(_REGION * size / errors.numel())
            means += (region.mean() for region in errors.transpose(0, dim).tensor_split(max(1, size // least)))
        return torch.stack(means)


def _within(error: OutputError, by_depth: OutputError, bound: float, mean_bound: float) -> OutputError:
    """`error` with bounds that are at least these."""
    bound, mean_bound = max(error.bound, bound), max(error.mean_bound, mean_bound)
    sensitivity = max(bound / by_depth.bound, mean_bound / by_depth.mean_bound)
    return replace(error, bound=bound, mean_bound=mean_bound, sensitivity=sensitivity)


def _error_within(
    name: str, pairs: Sequence[Pair], scale: float | None, depth: int, *, precision: float
) -> OutputError:
    """The error, with the bounds that the depth explains."""
    worst, total, count, largest = 0.0, 0.0, 0, 0.0
    is_number = scale is not None or pairs[0][0].is_floating_point()
    for expected, actual in pairs:
        if expected.shape != actual.shape:
            raise LowerdeckError(f"{name} has shape {list(actual.shape)} instead of {list(expected.shape)}")
        if expected.numel() == 0:
            continue
        wanted, found = expected.double(), actual.double()
        difference = (found - wanted).abs() if is_number else (found != wanted).double()
        # NaN or an infinity in one of the two only is the largest error there is; in both it is none.
        same = (wanted == found) | (wanted.isnan() & found.isnan())
        difference = torch.where(same, 0.0, difference.nan_to_num(nan=math.inf, posinf=math.inf))
        worst, total = max(worst, float(difference.max())), total + float(difference.sum())
        count = count + expected.numel()
        largest = max(largest, float(wanted.abs().nan_to_num(nan=0.0, posinf=0.0).max()))
    if not is_number:
        share = total / max(count, 1)
        return _error(name, share, share, ErrorUnit.SHARE, 1e-3, 1e-3)
    if scale is not None:
        return _error(name, worst / scale, total / max(count, 1) / scale, ErrorUnit.LSB, *_lsb_bounds(max(depth, 1)))
    unit = max(largest, 1e-9)
    bound = precision * math.sqrt(max(depth, 1))
    return _error(name, worst / unit, total / max(count, 1) / unit, ErrorUnit.RELATIVE, bound, bound)


def _lsb_bounds(depth: int) -> tuple[float, float]:
    """The largest and the mean error that `depth` roundings in succession explain.

    Each may go the other way by one step. Over many layers such steps partly cancel: networks of 46 layers were at most
    3 steps off, 0.6 in the mean (docs/conformance.md).
    """
    return min(depth, 2 + math.sqrt(depth)) + 0.01, 0.2 + 0.3 * math.sqrt(depth)


def _error(name: str, worst: float, mean: float, unit: ErrorUnit, bound: float, mean_bound: float) -> OutputError:
    return OutputError(output=name, max_error=worst, mean_error=mean, unit=unit, bound=bound, mean_bound=mean_bound)
