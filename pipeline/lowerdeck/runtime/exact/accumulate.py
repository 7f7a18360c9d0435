"""Exact sums of integer products, computed by PyTorch's floating-point kernels.

A float32 has 24 bits for its magnitude, so it holds every integer up to 2^24, and a sum of integers is exact in any
order while the sum of the terms' absolute values stays within that bound. For integer weights w, inputs of at most m
and a bias b that is `sum(|w|) * m + |b| <= 2^24` for every output channel, which the weights prove beforehand. Where
they do not, the channels are summed in several groups, inputs are split into bytes, or float64 with its 53 bits is
used. Kernels that round in between (TF32, bfloat16, Winograd) are off.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lowerdeck.runtime.global_settings import for_all_threads
from lowerdeck.runtime.onednn import right_convolutions

FLOAT32_LIMIT = 2**24
"""Every integer up to this magnitude is a float32 (IEEE 754: 24 bits of precision)."""
FLOAT64_LIMIT = 2**53
"""Every integer up to this magnitude is a float64 (IEEE 754: 53 bits of precision)."""
_MAX_PARTS = 16
"""More groups of channels than this cost more than float64."""

_CONVOLUTIONS: dict[int, Callable[..., Tensor]] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_TRANSPOSED: dict[int, Callable[..., Tensor]] = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


@contextmanager
def exact_kernels() -> Iterator[None]:
    """PyTorch with kernels that multiply and add in the precision of their operands, and nothing else.

    oneDNN and cuBLAS may otherwise round float32 operands to bfloat16 or TF32, and cuDNN and NNPACK may choose
    Winograd's or Fourier transforms, whose intermediate values are no integers.
    """
    with torch.no_grad(), _exact_settings():
        yield


@for_all_threads
@contextmanager
def _exact_settings() -> Iterator[None]:
    backends: Any = torch.backends
    settings = (backends.mkldnn.matmul, backends.mkldnn.conv, backends.cuda.matmul)
    precisions, cudnn = [setting.fp32_precision for setting in settings], backends.cudnn.enabled
    (nnpack,) = backends.nnpack.set_flags(False)
    backends.cudnn.enabled = False
    for setting in settings:
        setting.fp32_precision = "ieee"
    try:
        with right_convolutions():
            yield
    finally:
        backends.cudnn.enabled = cudnn
        backends.nnpack.set_flags(nnpack)
        for setting, precision in zip(settings, precisions, strict=True):
            setting.fp32_precision = precision


@dataclass(frozen=True, kw_only=True)
class Geometry:
    """Geometry of a convolution with one to three spatial dimensions; d is their number."""

    stride: tuple[int, ...]
    """[d]"""
    padding: tuple[int, ...]
    """[2 * d]: begin and end of every spatial dimension, outermost first (top, bottom, left, right).

    Padded are zeros, after subtraction of the zero point. For a transposed convolution it is what the output gains
    (negative: loses) at each side, as TOSA's `out_pad`.
    """
    dilation: tuple[int, ...]
    """[d]; ignored by transposed convolutions."""
    groups: int = 1
    transposed: bool = False


class Convolution:
    """A convolution of integers with constant weights.

    The result holds exact integers, as float32 where the weights prove that it can, else as float64.
    """

    def __init__(self, weights: Tensor, bias: Tensor | None, geometry: Geometry, *, largest: int) -> None:
        """Choose the arithmetic.

        Args:
            weights: Integers, less their zero point [o x c/groups x kernel]; for a transposed convolution
                [c x o/groups x kernel]. Any dtype that holds them.
            bias: Integers [o]; None for zero.
            geometry: Strides, padding, dilation, groups.
            largest: Upper bound of the inputs' absolute values: at most 255 for an 8-bit tensor less its zero point.

        Raises:
            OverflowError: not even float64 holds the sums.
        """
        self.geometry = geometry
        exact = weights.to(torch.int64)
        magnitudes = _sums(exact.abs(), geometry) * largest
        offset = torch.zeros(1, dtype=torch.int64) if bias is None else bias.to(torch.int64).abs().cpu()
        self.bound = int((magnitudes.cpu() + offset).max()) if magnitudes.numel() else 0
        """Upper bound of the result's absolute values."""
        if self.bound > FLOAT64_LIMIT:
            raise OverflowError(f"sums of up to {self.bound} exceed float64's exact integers, {FLOAT64_LIMIT}")
        self.dtype = torch.float32 if self.bound <= FLOAT32_LIMIT else torch.float64
        """dtype of the result."""
        self._num_bytes = 1 if largest <= 255 else math.ceil((largest.bit_length() + 1) / 8)
        byte_bound = self.bound if self._num_bytes == 1 else _bound(exact, geometry, 255)
        self._parts = _split(exact, geometry, largest=min(largest, 255), bound=byte_bound)
        self._bias = None if bias is None else bias.to(self.dtype)
        self._fused = self._num_bytes == 1 and len(self._parts) == 1 and self._parts[0].dtype == self.dtype

    def to(self, device: torch.device) -> Convolution:
        """Move weights and bias."""
        self._parts = [part.to(device) for part in self._parts]
        self._bias = None if self._bias is None else self._bias.to(device)
        return self

    def __call__(self, values: Tensor) -> Tensor:
        """The accumulators, bias included.

        Args:
            values: Integers, less their zero point, in any dtype that holds them [n x c x spatial], fastest with
                channels-last strides.

        Returns:
            `dtype` [n x o x spatial], to be called within `exact_kernels`.
        """
        geometry, dtype = self.geometry, self._parts[0].dtype
        if not geometry.transposed:
            values = _padded(values, geometry)
        if self._fused and not (geometry.transposed and any(geometry.padding)):
            return _apply(values.to(dtype), self._parts[0], self._bias, geometry)
        if self._num_bytes == 1:
            result = self._summed(values)
        else:
            # An arithmetic shift leaves the sign to the uppermost byte, and the lower ones are unsigned. From the top
            # down to byte p, the sum is 256^p times that of the weights with `values >> 8p`. That integer is at most
            # `bound`, as no shifted value exceeds `largest`, and a power of two leaves it exact. From the lowest
            # byte up, the sum for -1 would begin with 255 times the weights, which may exceed `bound` twofold.
            integers, top = values.to(torch.int64), self._num_bytes - 1
            result = self._summed(integers >> (8 * top)).mul_(256**top)
            for position in reversed(range(top)):
                result.add_(self._summed((integers >> (8 * position)) & 255), alpha=256**position)
        if geometry.transposed:
            result = F.pad(result, _pad_order(geometry.padding))
        if self._bias is not None:
            result = result + self._bias.reshape(-1, *[1] * len(geometry.stride))
        return result

    def _summed(self, values: Tensor) -> Tensor:
        """The sum of all parts, as `self.dtype`."""
        parts = self._parts
        if len(parts) == 1:
            return _apply(values.to(parts[0].dtype), parts[0], None, self.geometry).to(self.dtype)
        dim = 0 if self.geometry.transposed else 1
        chunks = torch.split(values.to(torch.float32), [part.shape[dim] for part in parts], dim=1)
        total = _apply(chunks[0], parts[0], None, self.geometry).to(self.dtype)
        for chunk, part in zip(chunks[1:], parts[1:], strict=True):
            total += _apply(chunk, part, None, self.geometry)
        return total


def matmul(left: Tensor, right: Tensor, *, largest_left: int, largest_right: int) -> Tensor:
    """The exact matrix product of integers.

    Args:
        left: Integers, less their zero point [... x i x k].
        right: Integers, less their zero point [... x k x j].
        largest_left: Upper bound of the absolute values in `left`.
        largest_right: The same for `right`.

    Returns:
        float32 or float64 [... x i x j].

    Raises:
        OverflowError: not even float64 holds the sums.
    """
    bound = largest_left * largest_right * left.shape[-1]
    if bound > FLOAT64_LIMIT:
        raise OverflowError(f"sums of up to {bound} exceed float64's exact integers, {FLOAT64_LIMIT}")
    dtype = torch.float32 if bound <= FLOAT32_LIMIT else torch.float64
    return torch.matmul(left.to(dtype), right.to(dtype))


def multiplies_bytes(device: torch.device) -> bool:
    """Whether PyTorch multiplies int8 matrices exactly and fast there: by a CPU's instructions that add to 32 bits.

    Older x86 instructions add pairs of products to 16 bits and saturate. oneDNN uses them on newer processors where its
    instruction set is limited, as stages do (ONEDNN_MAX_CPU_ISA). Products of extreme operands tell.
    """
    return device.type == "cpu" and torch.cpu._is_vnni_supported() and _adds_to_32_bits()


@cache
def _adds_to_32_bits() -> bool:
    left, right = torch.full((8, 64), 127, dtype=torch.int8), torch.full((64, 8), -128, dtype=torch.int8)
    return bool((torch._int_mm(left, right) == -127 * 128 * 64).all())


class Pointwise:
    """A convolution with kernel and stride 1 of int8 by int8, without padding: a matrix product in 32-bit integers."""

    def __init__(self, weights: Tensor, bias: Tensor) -> None:
        """Arrange the weights.

        Args:
            weights: int8 values [o x c].
            bias: Integers [o].

        Raises:
            OverflowError: 32 bits do not hold the sums.
        """
        self.bound = int((weights.to(torch.int64).abs().sum(1) * 128 + bias.to(torch.int64).abs()).max())
        """Upper bound of the result's absolute values."""
        if self.bound >= 2**31:
            raise OverflowError(f"sums of up to {self.bound} exceed 32-bit integers")
        self._weights = weights.to(torch.int8).t().contiguous()
        self._bias = bias.to(torch.int32)

    def __call__(self, values: Tensor) -> Tensor:
        """The accumulators int32 [... x o] for int8 [... x c]."""
        rows = values.reshape(-1, values.shape[-1])
        return torch._int_mm(rows, self._weights).add_(self._bias).reshape(*values.shape[:-1], -1)


def _sums(magnitudes: Tensor, geometry: Geometry) -> Tensor:
    """The sum of an output channel's weights [o], or an upper bound of it for transposed convolutions."""
    if not geometry.transposed:
        return magnitudes.flatten(1).sum(1)
    grouped = magnitudes.reshape(geometry.groups, -1, magnitudes.shape[1], math.prod(magnitudes.shape[2:]))
    return grouped.sum((1, 3)).flatten()


def _bound(weights: Tensor, geometry: Geometry, largest: int) -> int:
    return int(_sums(weights.abs(), geometry).max()) * largest if weights.numel() else 0


def _split(weights: Tensor, geometry: Geometry, *, largest: int, bound: int) -> list[Tensor]:
    """The weights in float32, in groups of input channels whose sums float32 holds; else in float64, whole."""
    if bound <= FLOAT32_LIMIT:
        return [weights.to(torch.float32)]
    dim = 0 if geometry.transposed else 1
    channels = weights.shape[dim]
    parts = math.ceil(bound / FLOAT32_LIMIT)
    while geometry.groups == 1 and parts <= min(channels, _MAX_PARTS):
        chunks = weights.tensor_split(parts, dim)
        if all(_bound(chunk, geometry, largest) <= FLOAT32_LIMIT for chunk in chunks):
            return [chunk.to(torch.float32).contiguous() for chunk in chunks]
        parts += 1
    return [weights.to(torch.float64)]


def _padded(values: Tensor, geometry: Geometry) -> Tensor:
    """`values` with the padding that the kernel itself does not add: it pads both ends alike."""
    begins, ends = geometry.padding[::2], geometry.padding[1::2]
    return values if begins == ends else F.pad(values, _pad_order(geometry.padding))


def _pad_order(padding: Sequence[int]) -> list[int]:
    """Padding as F.pad takes it: innermost dimension first."""
    pairs = list(zip(padding[::2], padding[1::2], strict=True))
    return [amount for pair in reversed(pairs) for amount in pair]


def _apply(values: Tensor, weights: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
    dims = len(geometry.stride)
    if geometry.transposed:
        return _TRANSPOSED[dims](values, weights, bias, stride=geometry.stride, groups=geometry.groups)
    begins, ends = geometry.padding[::2], geometry.padding[1::2]
    padding = begins if begins == ends else 0
    options = {"stride": geometry.stride, "dilation": geometry.dilation, "groups": geometry.groups}
    return _CONVOLUTIONS[dims](values, weights, bias, padding=padding, **options)
