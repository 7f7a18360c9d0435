"""Checks lowering against the delegation plan: the converter, the partitioner's tags, and the lowered program."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import TYPE_CHECKING

from executorch.exir.delegate import executorch_call_delegate
from executorch.exir.lowered_backend_module import get_lowered_submodules

from lowerdeck.contracts.converter import Converter
from lowerdeck.contracts.errors import LowerdeckError, PartitionCompilationError
from lowerdeck.contracts.partition_hooks import HookPosition, Partition, PartitionHook
from lowerdeck.contracts.plan import DelegationPlan, listed
from lowerdeck.graph.nodes import DELEGATION_TAG, KERNEL_LIBRARY
from lowerdeck.graph.state import state_nodes

if TYPE_CHECKING:
    import torch
    from executorch.exir.backend.partitioner import PartitionResult
    from torch.export import ExportedProgram


def check_planned_converter(plan: DelegationPlan, converter: Converter) -> None:
    """Check that a plan is converted with the converter that it was made for.

    Raises:
        LowerdeckError: `converter` differs from the plan's.
    """
    planned = plan.converter
    if planned is not None and planned != converter:
        raise LowerdeckError(
            f"the program was partitioned for {planned.name} {planned.version} of flavor {planned.flavor} and would be "
            f"converted by {converter.name} {converter.version} of flavor {converter.flavor}"
            + ("" if planned.target == converter.target else ", which states other properties of the target")
            + "; `dvc repro -f partition` plans it again"
        )


def check_partitioner_against_plan(plan: DelegationPlan) -> PartitionHook:
    """Return the hook that raises LowerdeckError where the partitioner decides otherwise than `plan`.

    It raises PartitionCompilationError where state, which the program writes, becomes a constant of a partition.
    """
    planned = {node.name: node.partition for node in plan.nodes}
    planned_libraries = {node.name: node.processor for node in plan.nodes if node.processor in plan.libraries}

    def partition_as_planned(decide: Partition, program: ExportedProgram) -> PartitionResult:
        result = decide(program)
        tags = {
            node.name: node.meta.get(DELEGATION_TAG)
            for node in result.tagged_exported_program.graph.nodes
            if node.op == "call_function"
        }
        libraries = {
            node.name: node.meta[KERNEL_LIBRARY]
            for node in result.tagged_exported_program.graph.nodes
            if KERNEL_LIBRARY in node.meta
        }
        if _groups(tags) != _groups(planned) or libraries != planned_libraries:
            different = sorted(
                {name for name in planned | tags if bool(planned.get(name)) != bool(tags.get(name))}
                | {name for name, _ in libraries.items() ^ planned_libraries.items()}
            )
            raise LowerdeckError(
                f"{plan.backend} partitioned the program differently than in the stage partition "
                f"({listed(different, 5) or 'other groups'}); `dvc repro -f partition` plans it again"
            )
        _check_state_is_no_constant(result.tagged_exported_program, plan.backend)
        return result

    return PartitionHook(position=HookPosition.STEP, partition=partition_as_planned)


def check_lowered_program(lowered: torch.fx.GraphModule, plan: DelegationPlan) -> None:
    """Check that each delegate of a lowered program contains exactly the nodes of one partition of `plan`.

    Tags are the partitioner's decision; this checks the result.

    Args:
        lowered: Edge program right after `to_backend`, with the original nodes of its delegates.
        plan: The plan to check against.

    Raises:
        LowerdeckError: the program differs from the plan; names the nodes.
    """
    delegates = {
        name: {node.name for node in module.original_module.graph.nodes if node.op == "call_function"}
        for name, module, _ in get_lowered_submodules(lowered)
    }
    found: dict[str, str | None] = {node: name for name, nodes in delegates.items() for node in nodes}
    found |= dict.fromkeys(_undelegated(lowered.graph))
    planned = {node.name: node.partition for node in plan.nodes}
    if found.keys() == planned.keys() and _groups(found) == _groups(planned):
        return
    wrong = {
        "planned for the delegate and left on the CPU": [
            name for name, tag in planned.items() if tag and name in found and not found[name]
        ],
        "planned for the CPU and delegated": [
            name for name, tag in planned.items() if not tag and found.get(name) is not None
        ],
        "planned and no longer in the program": [name for name in planned if name not in found],
        "in the program and not planned": [name for name in found if name not in planned],
    }
    differences = [f"{what}: {listed(names, 5)}" for what, names in wrong.items() if names]
    raise LowerdeckError(
        f"{plan.backend} lowered the program differently than planned: "
        f"{'; '.join(differences) or 'the same nodes are delegated, in other partitions'}"
    )


def _check_state_is_no_constant(tagged: ExportedProgram, backend: str) -> None:
    """Check that no partition owns state: it would compute with the initial value, and what is written would be lost.

    Raises:
        PartitionCompilationError: one does; its nodes are those that read the state.
    """
    owned = [(node, tag) for node in state_nodes(tagged) if (tag := node.meta.get(DELEGATION_TAG)) is not None]
    readers = {user.name for node, tag in owned for user in node.users if user.meta.get(DELEGATION_TAG) == tag}
    if readers:
        names = sorted({tagged.graph_signature.inputs_to_buffers[node.name] for node, _ in owned})
        failure = f"{backend} takes state for a constant of the delegate: {listed(names, 5)}"
        raise PartitionCompilationError(failure, frozenset(readers), failure)


def _undelegated(graph: torch.fx.Graph) -> list[str]:
    """The nodes that are not delegated: all but calls of delegates and the getitems of their results."""

    def calls_delegate(node: torch.fx.Node) -> bool:
        return node.target is executorch_call_delegate

    return [
        node.name
        for node in graph.nodes
        if node.op == "call_function"
        and not calls_delegate(node)
        and not (node.target is operator.getitem and calls_delegate(node.args[0]))
    ]


def _groups(tags: Mapping[str, str | None]) -> set[frozenset[str]]:
    """The partitions as sets of nodes, independent of their numbering."""
    groups: dict[str, set[str]] = {}
    for name, tag in tags.items():
        if tag is not None:
            groups.setdefault(tag, set()).add(name)
    return {frozenset(group) for group in groups.values()}
