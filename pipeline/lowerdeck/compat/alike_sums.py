"""Convolutions and linear layers whose sums are in the same order on every processor, and are quick all the same.

With one thread PyTorch computes small and 1x1 convolutions, and all matrix products, by MKL, whose kernels differ
between Intel's and AMD's processors, and with them the last bits of sums. `MKL_CBWR=COMPATIBLE` makes them alike, at a
third of their speed. oneDNN's kernels for AVX2 are alike and as fast as MKL's, but need some 70 us to start. So large
layers are computed by oneDNN, and small ones by MKL.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_WORTH_ONEDNN_MACS = 1 << 20
"""From here on oneDNN is faster than MKL in its compatible mode, its start included."""
_WORTH_ONEDNN_WEIGHTS = 1 << 17
"""The same for linear layers. The number of rows does not count, so that a row's sums do not depend on the others: the
features of a part of a signal are those of the whole."""
_CONVOLUTION = "aten::_slow_conv2d_forward"
_LAYERS = ("aten::addmm", "aten::mm")


@functools.cache
def make_sums_alike() -> Any:
    """Compute large layers of float32 by oneDNN for the rest of the process, while the result is kept."""
    import torch

    replaced: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    original = {name: torch.library.get_kernel(name, "CPU") for name in (_CONVOLUTION, *_LAYERS)}

    def convolution(
        keys: Any,
        values: torch.Tensor,
        weight: torch.Tensor,
        kernel_size: list[int],
        bias: torch.Tensor | None,
        stride: list[int],
        padding: list[int],
    ) -> Any:
        if _is_float32(values, weight, bias) and weight.dim() == 4:
            sizes = zip(values.shape[2:], padding, kernel_size, stride, strict=True)
            positions = math.prod((size + 2 * pad - kernel) // step + 1 for size, pad, kernel, step in sizes)
            # The number of samples does not count: a batch gets the kernel of its samples.
            if min(values.shape[0], 1) * positions * weight.numel() >= _WORTH_ONEDNN_MACS:
                return torch.mkldnn_convolution(values, weight, bias, padding, stride, [1, 1], 1)
        return original[_CONVOLUTION].call_boxed(keys, values, weight, kernel_size, bias, stride, padding)

    def addmm(keys: Any, bias: torch.Tensor, left: torch.Tensor, right: torch.Tensor, **factors: Any) -> Any:
        is_layer = bias.dim() == 1 and bias.shape[0] == right.shape[1] and all(each == 1 for each in factors.values())
        if is_layer and _is_float32(bias) and _is_large_layer(left, right):
            return torch.ops.mkldnn._linear_pointwise(left, right.t(), bias, "none", [], "")
        return original["aten::addmm"].call_boxed(keys, bias, left, right, **factors)

    def mm(keys: Any, left: torch.Tensor, right: torch.Tensor) -> Any:
        if _is_large_layer(left, right):
            return torch.ops.mkldnn._linear_pointwise(left, right.t(), None, "none", [], "")
        return original["aten::mm"].call_boxed(keys, left, right)

    for name, function in ((_CONVOLUTION, convolution), ("aten::addmm", addmm), ("aten::mm", mm)):
        replaced.impl(name.removeprefix("aten::"), function, "CPU", with_keyset=True)
    return replaced


def _is_float32(*tensors: torch.Tensor | None) -> bool:
    return all(tensor is None or (tensor.is_floating_point() and tensor.itemsize == 4) for tensor in tensors)


def _is_large_layer(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether `left @ right` is a linear layer, whose weight is `right` transposed, and worth oneDNN's start."""
    return (
        _is_float32(left, right)
        and left.shape[-1] == right.shape[0]
        and left.is_contiguous()
        and right.t().is_contiguous()
        and left.shape[0] > 0
        and right.numel() >= _WORTH_ONEDNN_WEIGHTS
    )
