"""Executing a `.pte` on the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def open_program(
    path: Path, delegates: Sequence[str]
) -> Callable[[tuple[torch.Tensor, ...]], torch.Tensor] | None:
    """The program at `path`, ready to be called with one sample's inputs; None where this host cannot execute it.

    Args:
        path: A `.pte`.
        delegates: Backend ids of its delegates.
    """
    from pipeline.runtime.native import NativeProgram, can_execute

    return NativeProgram(path) if can_execute(delegates) else None
