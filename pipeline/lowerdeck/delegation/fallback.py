"""A kernel library of the CPU beneath a delegate: `target.fallback`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lowerdeck.contracts.backends import Backend
from lowerdeck.contracts.lowering import Lowering
from lowerdeck.contracts.partition_hooks import (
    HookPosition,
    Partition,
    PartitionHook,
    PreservedOperators,
    PreserveOperators,
)
from lowerdeck.delegation.exclusion import marks_hidden
from lowerdeck.graph.nodes import MARK_OF_LIBRARY

if TYPE_CHECKING:
    import torch
    from executorch.exir.backend.partitioner import Partitioner, PartitionResult
    from torch.export import ExportedProgram
    from torch.fx import Graph


def lowering_of(backend: Backend, program: ExportedProgram) -> Lowering:
    """How `backend` and the kernel library beneath it, if any, lower `program`."""
    lowering = backend.lowering(program)
    return lowering if backend.fallback is None else replace(lowering, fallback=backend.fallback.lowering(program))


def assign_rest(library: Partitioner) -> PartitionHook:
    """Return the hook that lets `library`, the partitioner of a kernel library, mark nodes without a tag."""

    def partition_then_assign(decide: Partition, program: ExportedProgram) -> PartitionResult:
        _remove_marks_of_library(program.graph)
        result = decide(program)
        with marks_hidden(result.tagged_exported_program.graph):
            library.partition(result.tagged_exported_program)
        return result

    def preserve_of_both(preserve: PreserveOperators, program: ExportedProgram) -> PreservedOperators:
        operators, preserves = preserve(program)
        of_library, library_preserves = library.ops_to_not_decompose(program)

        def is_preserved(node: torch.fx.Node) -> bool:
            by_delegate = node.target in operators and (preserves is None or preserves(node))
            return bool(by_delegate or (node.target in of_library and library_preserves(node)))

        return list(dict.fromkeys([*operators, *of_library])), is_preserved

    return PartitionHook(
        position=HookPosition.FALLBACK, partition=partition_then_assign, ops_to_not_decompose=preserve_of_both
    )


def _remove_marks_of_library(graph: Graph) -> None:
    """Remove marks that an earlier partition left: the delegate would take nodes for its own that the library knows."""
    for node in graph.nodes:
        custom = node.meta.get("custom", {})
        if MARK_OF_LIBRARY in custom:
            given = (MARK_OF_LIBRARY, custom[MARK_OF_LIBRARY])
            node.meta["custom"] = {key: value for key, value in custom.items() if key not in given}
