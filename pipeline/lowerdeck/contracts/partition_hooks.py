"""Hooks around a partitioner, and their order."""

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
"""ATen program -> what the partitioner preserves in it."""


class HookPosition(IntEnum):
    """Position of a hook, from the partitioner outwards; each position has at most one hook.

    A hook calls the one inside of it: an outer hook acts first before partitioning, and last after it.
    """

    BACKEND = 1
    """Backend-specific changes next to the partitioner; it reads the marks of MARK_FAULTY and MARK_EXCLUDED."""
    SKIP_FAILING = 2
    """Partitions again without a node that the partitioner fails on; it adds to the marks of MARK_FAULTY."""
    MARK_FAULTY = 3
    """Marks the nodes that the delegate was found to compute wrongly, or not to compile."""
    MARK_EXCLUDED = 4
    """Marks the nodes that options exclude, and removes earlier marks of this kind."""
    IO_BOUNDARY = 5
    """Removes tags, so it is outside of everything that sets them."""
    FALLBACK = 6
    """Assigns what has no tag to a kernel library, so it is outside of everything that sets or removes tags."""
    STEP = 7
    """Builds the plan or checks the tags against it; it is outermost because it must see the final tags."""


@dataclass(frozen=True, kw_only=True)
class PartitionHook:
    """Wraps one or both of the methods that ExecuTorch calls on a partitioner."""

    position: HookPosition
    partition: Callable[[Partition, ExportedProgram], PartitionResult] | None = None
    """(wrapped function, edge program) -> its result; None to wrap nothing."""
    ops_to_not_decompose: Callable[[PreserveOperators, ExportedProgram], PreservedOperators] | None = None
    """(wrapped function, ATen program) -> its result; None to wrap nothing."""
