"""The nodes that a backend's partitioner left on the CPU, while its own checks can still be asked about them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from executorch.exir import to_edge_transform_and_lower
from executorch.exir.backend.partitioner import PartitionResult

from pipeline.contracts import Backend, Reason

TAG = "delegation_tag"


@dataclass(kw_only=True)
class Rejections:
    """What a partitioner decided, with its nodes."""

    partitioner: Any
    program: torch.export.ExportedProgram | None = None
    """As the partitioner got it."""
    reasons: dict[torch.fx.Node, Reason] = field(default_factory=dict)
    """Of the nodes that are not delegated."""

    def named(self, name: str) -> tuple[torch.fx.Node, Reason]:
        """The one rejected node of that name."""
        ((node, reason),) = [(node, reason) for node, reason in self.reasons.items() if node.name == name]
        return node, reason


def rejections(
    program: torch.export.ExportedProgram, backend: Backend, ask: Callable[[Rejections], None] | None = None
) -> Rejections:
    """Lower `program` as the steps do, up to the partitioner's decision; then call `ask`, with all of it in place."""
    lowering = backend.lowering(program)
    found = Rejections(partitioner=lowering.partitioner)
    decide = lowering.partitioner.partition
    assert lowering.reasons is not None

    def partition(edge: torch.export.ExportedProgram) -> PartitionResult:
        graph = decide(edge).tagged_exported_program.graph
        found.program = edge
        for node in graph.nodes:
            if node.op == "call_function" and TAG not in node.meta:
                given = reason(node)
                assert given is not None, node.name
                found.reasons[node] = given
        if ask is not None:
            ask(found)
        raise _Decided

    lowering.partitioner.partition = partition
    with lowering.reasons() as reason:
        try:
            to_edge_transform_and_lower(
                program,
                transform_passes=lowering.transform_passes,
                partitioner=[lowering.partitioner],
                compile_config=lowering.edge_config,
            )
        except _Decided:
            return found
    raise AssertionError("the partitioner was not asked")


class _Decided(Exception):
    """Nothing more is to be lowered."""
