"""How the outputs of a delegated program compare with PyTorch's, in a unit that suits the element type."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.contracts.quantization import QuantizationScheme

LSB, RELATIVE, SHARE = "LSB", "of the largest value", "of the values differ"
LIMITS = {
    LSB: 1.0,
    "float32": 1e-4,
    "float16": 5e-3,
    "quantized": 5e-2,
    SHARE: 0.0,
}
"""What counts as agreement. LSB: results in integers, in steps of their quantization. float32, float16: the largest
difference over the largest value; the kernels of XNNPACK approximate exponential functions. quantized: the same for
floats that are computed from quantized inputs, of which one may be a step off.
Booleans and indices have to be equal."""


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """The largest difference of a program's outputs from the quantized or float program in PyTorch."""

    max_error: float
    """Rounded: the last digits depend on the processor."""
    unit: str
    within_limit: bool


def agreement(
    expected: Sequence[Any], actual: Sequence[Any], scales: Sequence[float | None], scheme: QuantizationScheme
) -> Agreement:
    """Compare outputs; of several, the one that exceeds its limit most counts.

    Args:
        expected: of the exported program in PyTorch.
        actual: of the delegated program.
        scales: one step of each output's quantization, None for floats.
        scheme: decides the limit for floats.

    Raises:
        LowerdeckError: there are more or fewer outputs, or one has another shape.
    """
    if not len(expected) == len(actual) == len(scales):
        raise LowerdeckError(f"the program gives {len(actual)} results instead of {len(expected)}")
    compared = [_compare(*pair, scheme) for pair in zip(expected, actual, scales, strict=True)]
    error, unit, limit = max(compared, key=lambda one: one[0] / (one[2] or 1e-9))
    digits = round(error, 1) if unit == LSB else float(f"{error:.0e}")
    return Agreement(max_error=digits, unit=unit, within_limit=error <= limit + (0.01 if unit == LSB else 0.0))


def _compare(
    expected: torch.Tensor, actual: torch.Tensor, scale: float | None, scheme: QuantizationScheme
) -> tuple[float, str, float]:
    """(error, unit, limit)."""
    if expected.shape != actual.shape:
        raise LowerdeckError(f"the result has shape {list(actual.shape)} instead of {list(expected.shape)}")
    if expected.numel() == 0:
        return 0.0, SHARE, LIMITS[SHARE]
    if not expected.is_floating_point():
        return float((expected != actual).float().mean()), SHARE, LIMITS[SHARE]
    difference = (actual.double() - expected.double()).abs().max()
    if scale is not None:
        return float(difference / scale), LSB, LIMITS[LSB]
    limit = LIMITS["quantized" if scheme.is_quantized else scheme.name]
    return float(difference / expected.double().abs().max().clamp(min=1e-9)), RELATIVE, limit
