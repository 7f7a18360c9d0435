"""What acts around a partitioner, and in which order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from executorch.exir.backend.partitioner import PartitionResult
    from torch.export import ExportedProgram

Partition = Callable[["ExportedProgram"], "PartitionResult"]
"""Edge program -> its nodes tagged for delegation."""
PreservedOperators = tuple[list[Any], Callable[["torch.fx.Node"], bool] | None]
"""Operators that must not be decomposed, and for which of their nodes; None for all."""
PreserveOperators = Callable[["ExportedProgram"], PreservedOperators]
"""ATen program -> what the partitioner wants to be kept whole in it."""


class HookPosition(IntEnum):
    """Where a hook stands, from the partitioner outwards; each position has at most one hook.

    A hook calls what stands inside of it. So what the outer ones do before the partitioner decides comes first, and
    what they do afterwards comes last.
    """

    BACKEND = 1
    """What one backend needs right around its partitioner. It reads the marks that MARK_EXCLUDED has made."""
    MARK_EXCLUDED = 2
    """Marks the nodes that options exclude, before anything looks for these marks."""
    IO_BOUNDARY = 3
    """Takes tags away that the partitioner has given, so that it stands outside of all that leads to tags."""
    STEP = 4
    """Plans, or checks the tags against the plan. It must see the tags that ExecuTorch would act on, so that it stands
    outside of all that changes them."""


@dataclass(frozen=True, kw_only=True)
class PartitionHook:
    """Acts around one or both of the two questions that ExecuTorch asks a partitioner."""

    position: HookPosition
    partition: Callable[[Partition, ExportedProgram], PartitionResult] | None = None
    """(what stands inside, edge program) -> the result; None where it does not act."""
    ops_to_not_decompose: Callable[[PreserveOperators, ExportedProgram], PreservedOperators] | None = None
    """(what stands inside, ATen program) -> the answer; None where it does not act."""
