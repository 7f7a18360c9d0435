"""Comparison of a delegated program's outputs with PyTorch's, in units that suit the element type."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.contracts.quantization import QuantizationScheme

LSB, RELATIVE, SHARE = "LSB", "of the largest value", "of the values differ"
LIMITS = {LSB: 1.0, "float32": 1e-4, "float16": 5e-3, "quantized": 5e-2, SHARE: 0.0}
"""The largest error that counts as agreement. LSB: of integers, in steps of their
quantization, more where steps before a steep function explain it. float32, float16: the
largest difference over the largest value; XNNPACK's kernels approximate exponential functions. quantized: the same for
floats computed from quantized inputs, one of which may be a step off. Booleans and indices have to be equal."""


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """The largest difference between a program's outputs and those of the quantized or float program in PyTorch."""

    max_error: float
    """Rounded, because the last digits depend on the processor."""
    unit: str
    within_limit: bool


def agreement(
    expected: Sequence[Any],
    actual: Sequence[Any],
    scales: Sequence[float | None],
    scheme: QuantizationScheme,
    rounded: Sequence[Any] = (),
) -> Agreement:
    """Compare outputs and return the result of the one with the largest error relative to its limit.

    Args:
        expected: Outputs of the exported program in PyTorch.
        actual: Outputs of the delegated program.
        scales: One step of each output's quantization, None for floats.
        scheme: Decides the limit for floats.
        rounded: `expected` if every integer before it is rounded in another way; raises the limits of integers, because
            a steep function turns one step at its input into several.

    Raises:
        LowerdeckError: the number or a shape of the outputs differs.
    """
    if not len(expected) == len(actual) == len(scales):
        raise LowerdeckError(f"the program returns {len(actual)} results instead of {len(expected)}")
    others = rounded or expected
    compared = (_compare(*pair, scheme) for pair in zip(expected, actual, scales, others, strict=True))
    error, unit, limit = max(compared, key=lambda result: result[0] / (result[2] or 1e-9))
    shown = round(error, 1) if unit == LSB else float(f"{error:.0e}")
    return Agreement(max_error=shown, unit=unit, within_limit=error <= limit + (0.01 if unit == LSB else 0.0))


def _compare(
    expected: torch.Tensor,
    actual: torch.Tensor,
    scale: float | None,
    rounded: torch.Tensor,
    scheme: QuantizationScheme,
) -> tuple[float, str, float]:
    """Error, unit and limit."""
    if expected.shape != actual.shape:
        raise LowerdeckError(f"the result has shape {list(actual.shape)} instead of {list(expected.shape)}")
    if expected.numel() == 0:
        return 0.0, SHARE, LIMITS[SHARE]
    if not expected.is_floating_point():
        return float((expected != actual).float().mean()), SHARE, LIMITS[SHARE]
    difference = (actual.double() - expected.double()).abs().max()
    if scale is not None:
        by_rounding = float((rounded.double() - expected.double()).abs().max() / scale)
        return float(difference / scale), LSB, max(LIMITS[LSB], by_rounding)
    limit = LIMITS["quantized" if scheme.is_quantized else scheme.name]
    return float(difference / expected.double().abs().max().clamp(min=1e-9)), RELATIVE, limit
