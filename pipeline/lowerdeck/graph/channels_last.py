"""Models that are written for contiguous memory, on targets that want it channels-last, as Cortex-M do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch._prims_common import suggest_memory_format
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

from lowerdeck.contracts.errors import LowerdeckError

_OF_IMAGES = (
    *("conv2d", "conv_transpose2d", "avg_pool2d", "max_pool2d", "adaptive_avg_pool2d", "max_pool2d_with_indices"),
)

_OF_METADATA = ("__get__", "__set__", "dim", "numel", "size", "storage_offset", "stride")
"""What torch.export, too, asks of every tensor once it has been traced."""


class ChannelsLast(TorchFunctionMode):
    """While it is active, a model may do with channels-last memory what it does with contiguous memory.

    - `x.view(...)` of memory that has no such view is one of a contiguous copy: `x.view(x.size(0), -1)` behind a
      convolution, as of LeNet, is right for contiguous memory alone. `reshape` and `flatten` copy as well.
    - Convolutions and poolings get copies of contiguous tensors, such as a concatenation with constants or a reshaped
      linear layer's result. Their own results, and whatever follows, would be contiguous as well.
    """

    def __init__(self) -> None:
        super().__init__()
        self._copies: list[tuple[torch.Tensor, torch.Tensor, tuple[int, int]]] = []
        """Images, what became copies of them, and the versions of both, which change with every write."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """See TorchFunctionMode.

        Raises:
            LowerdeckError: the model reads an image after it has written into what is a copy of it here.
        """
        tensors = (
            [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)] if self._copies else []
        )
        if getattr(func, "__name__", "") not in _OF_METADATA:
            self.check(tensors)
        if getattr(func, "__name__", "") in _OF_IMAGES and args and _is_contiguous_image(args[0]):
            # Not `contiguous`, which leaves one channel as it is.
            copy = args[0].clone if args[0].shape[1] == 1 else args[0].contiguous
            return func(copy(memory_format=torch.channels_last), *args[1:], **(kwargs or {}))
        if _needs_copy(func, args, kwargs or {}):
            copy = func(args[0].contiguous(), *args[1:], **(kwargs or {}))
            self._copies.append((args[0], copy, (args[0]._version, copy._version)))
            return copy
        return func(*args, **(kwargs or {}))

    def check_returned(self, _: torch.nn.Module, __: Any, returned: Any) -> None:
        """Check what the model returns, as a forward hook."""
        with torch._C.DisableTorchFunction():
            self.check(returned)

    def check(self, read: Any) -> None:
        """Raise LowerdeckError where one of the tensors in `read` lacks what the model has written into another."""
        tensors = [each for each in tree_leaves(read) if isinstance(each, torch.Tensor)]
        if any(_share_memory(each, stale) for stale in self._stale() for each in tensors):
            raise LowerdeckError(
                "the model reads an image x, and has written into x.view(...), x.reshape(...) or x.flatten(...), or "
                "vice versa: of channels-last memory that is a copy. Write into a slice of x itself, or set "
                "model.memory_format: contiguous"
            )

    def _stale(self) -> Iterator[torch.Tensor]:
        """What lacks what the model has written into the other of an image and its copy."""
        for image, copy, (of_image, of_copy) in self._copies:
            if copy._version != of_copy:
                yield image
            if image._version != of_image:
                yield copy


def _is_contiguous_image(x: Any) -> bool:
    return (
        isinstance(x, torch.Tensor)
        and x.ndim == 4
        and x.is_floating_point()
        and (not x.is_contiguous(memory_format=torch.channels_last) or _is_taken_for_contiguous(x))
    )


def _is_taken_for_contiguous(x: torch.Tensor) -> bool:
    """Whether an image of one channel, which is in both layouts, has the strides of a contiguous one.

    Then the results of convolutions are contiguous.
    """
    return x.shape[1] == 1 and suggest_memory_format(x) == torch.contiguous_format


def _needs_copy(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether `func` gives an image another shape, which its memory has no view of.

    A copy by an operator of its own is quantized as such, and computed on integers.
    """
    if not args or not isinstance(args[0], torch.Tensor) or args[0].is_contiguous():
        return False
    x, *rest = args
    if func is torch.Tensor.view:
        return not kwargs and not _has_view(x, *rest)
    if x.ndim != 4 or not x.is_contiguous(memory_format=torch.channels_last):
        return False
    if func in (torch.Tensor.reshape, torch.reshape):
        return not _has_view(x, *(rest or [kwargs["shape"]]))
    if func in (torch.Tensor.flatten, torch.flatten):
        first, last = _flattened(x.ndim, *rest, **kwargs)
        return not _has_view(x, (*x.shape[:first], -1, *x.shape[last + 1 :]))
    return False


def _flattened(ndim: int, start_dim: int = 0, end_dim: int = -1) -> tuple[int, int]:
    return start_dim % ndim, end_dim % ndim


def _has_view(x: torch.Tensor, *shape: Any) -> bool:
    """Whether `x.view(*shape)` exists, found apart from what is traced, which would keep a call that fails."""
    if any(isinstance(each, torch.SymInt) for each in (*x.shape, *x.stride())):
        return True  # as far as is known
    with _disable_current_modes():
        like = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")
        try:
            like.view(*shape)
        except (RuntimeError, ValueError):
            return False
    return True


def _share_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool(one.untyped_storage()._cdata == other.untyped_storage()._cdata)
