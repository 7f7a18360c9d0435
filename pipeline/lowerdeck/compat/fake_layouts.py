"""Layouts of fake tensors: enough to make a fake tensor again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


class UnknownLayoutError(Exception):
    """A value is more than tensors whose layouts never change."""


@dataclass(frozen=True)
class Layout:
    """All that a fake tensor is made from."""

    dtype: Any
    device: Any
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    requires_grad: bool

    @staticmethod
    def of(tensor: Any) -> Layout:
        """The layout of a fake tensor.

        Raises:
            UnknownLayoutError: it is none, or has values, sizes that vary, or a place within another tensor.
        """
        from torch._subclasses.fake_tensor import FakeTensor

        if not isinstance(tensor, FakeTensor):
            raise UnknownLayoutError
        if tensor.constant is not None or tensor._has_symbolic_sizes_strides or tensor.storage_offset():
            raise UnknownLayoutError
        grad = bool(tensor.requires_grad)
        return Layout(tensor.dtype, tensor.fake_device, tuple(tensor.shape), tensor.stride(), grad)

    def tensor(self, mode: Any) -> Any:
        """A fake tensor of a mode, made as FakeTensorMode makes those of its own cache."""
        import torch
        from torch._subclasses.fake_tensor import FakeTensor, in_kernel_invocation_manager

        with in_kernel_invocation_manager(mode):
            empty = torch.empty_strided(
                self.shape, self.stride, dtype=self.dtype, device="meta", requires_grad=self.requires_grad
            )
        return FakeTensor(mode, empty, self.device)


def described(result: Any) -> Any:
    """A tensor, or tensors in lists and tuples, with layouts in their places.

    Raises:
        UnknownLayoutError: it contains something else, or a tensor without a layout.
    """
    return type(result)(map(described, result)) if type(result) in (list, tuple) else Layout.of(result)


def made(description: Any, mode: Any) -> Any:
    """What `described` was given, with new tensors of a FakeTensorMode."""
    if isinstance(description, Layout):
        return description.tensor(mode)
    return type(description)(made(each, mode) for each in description)
