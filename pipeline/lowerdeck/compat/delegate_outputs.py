"""What delegates return, described once and not traced again by every pass."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any


class DescribedOnce:
    """Replaces the call of a delegate with fake tensors: its outputs have the shapes of the first such call.

    A delegate is compiled: nothing changes what it contains. Passes trace it only to learn the shapes of its outputs.
    """

    def __init__(self, call: Callable[..., Any]) -> None:
        """`call(lowered_module, *inputs)` traces what the delegate replaces."""
        self._call = call
        self._known: weakref.WeakKeyDictionary[Any, dict[Any, Any]] = weakref.WeakKeyDictionary()

    def __call__(self, lowered_module: Any, *args: Any) -> Any:
        """Outputs of the delegate, in the mode of its inputs."""
        from torch._subclasses.fake_tensor import FakeTensor
        from torch.utils import _pytree as pytree

        inputs = [_layout(arg) if isinstance(arg, FakeTensor) else None for arg in args]
        if not inputs or None in inputs:  # real tensors, sizes that vary, or plain values
            return self._call(lowered_module, *args)
        known = self._known.setdefault(lowered_module, {})
        key = tuple(inputs)
        if key not in known:
            outputs = self._call(lowered_module, *args)
            leaves, structure = pytree.tree_flatten(outputs)
            layouts = [_layout(leaf) if isinstance(leaf, FakeTensor) else None for leaf in leaves]
            if None not in layouts:
                known[key] = layouts, structure
            return outputs
        layouts, structure = known[key]
        with args[0].fake_mode:
            return pytree.tree_unflatten([_tensor(*layout) for layout in layouts], structure)


def _layout(tensor: Any) -> tuple[Any, ...] | None:
    """All that passes read of a tensor; None where that is not constant or cannot be made again."""
    sizes = (*tensor.shape, *tensor.stride(), tensor.storage_offset())
    if not all(isinstance(size, int) for size in sizes) or tensor.storage_offset() != 0:
        return None
    return tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype, tensor.device, tensor.requires_grad


def _tensor(shape: Any, stride: Any, dtype: Any, device: Any, requires_grad: bool) -> Any:
    import torch

    return torch.empty_strided(shape, stride, dtype=dtype, device=device, requires_grad=requires_grad)
