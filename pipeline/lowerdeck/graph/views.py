"""Views that a model takes of memory which it expects to be contiguous, and which its target wants channels-last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

from lowerdeck.contracts.errors import LowerdeckError


class ViewsAsCopies(TorchFunctionMode):
    """While it is active, `x.view(...)` of memory that has no such view copies, as `x.reshape(...)` does.

    `x.view(x.size(0), -1)` behind a convolution, as of LeNet, is right for contiguous memory alone.
    """

    def __init__(self) -> None:
        super().__init__()
        self._copies: list[torch.Tensor] = []

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """See TorchFunctionMode.

        Raises:
            LowerdeckError: the model writes into what has become a copy, where it expects to write into the whole.
        """
        if self._copies and _writes(func) and any(_share_memory(args[0], copy) for copy in self._copies):
            raise LowerdeckError(
                "the model writes into x.view(...) of channels-last memory, which has no such view; write into a slice "
                "of x itself, or set model.memory_format: contiguous"
            )
        if func is not torch.Tensor.view or kwargs or _has_view(*args):
            return func(*args, **(kwargs or {}))
        self._copies.append(args[0].reshape(*args[1:]))
        return self._copies[-1]


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


def _writes(func: Any) -> bool:
    name = getattr(func, "__name__", "")
    return name == "__setitem__" or (name.endswith("_") and not name.endswith("__"))


def _share_memory(written: Any, copy: torch.Tensor) -> bool:
    if not isinstance(written, torch.Tensor):
        return False
    return bool(written.untyped_storage()._cdata == copy.untyped_storage()._cdata)
