"""Step partition: quantized program -> edge program and delegation plan, without the backend's compiler."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower
from executorch.exir.backend.partitioner import PartitionResult

from lowerdeck.compat.quick_graphs import quick_graphs
from lowerdeck.contracts.backends import Backend
from lowerdeck.contracts.lowering import Lowering
from lowerdeck.contracts.plan import DelegationPlan, NothingDelegatedError, Reason, ReasonCode
from lowerdeck.delegation.plan_builder import planned_nodes
from lowerdeck.graph import io_boundary
from lowerdeck.graph.nodes import DELEGATION_TAG

if TYPE_CHECKING:
    import torch
    from executorch.exir import EdgeProgramManager
    from executorch.exir.backend.partitioner import Partitioner
    from torch.export import ExportedProgram

PreservedOps = tuple[list[str], list[str]]
"""Operators that a partitioner may keep from being decomposed, and the nodes that it does keep, by their names."""


@dataclass(frozen=True, kw_only=True)
class Partitioned:
    """An edge program and what the partitioner decided about it."""

    program: ExportedProgram
    """Edge-dialect program after the backend's passes, before lowering."""
    edge_config: EdgeCompileConfig
    """What it was made with."""
    preserved_ops: PreservedOps
    """What the partitioner kept from being decomposed."""
    plan: DelegationPlan


def partition(program: ExportedProgram, backend: Backend) -> Partitioned:
    """Run the backend's partitioner on `program` and keep its decisions instead of compiling them.

    Args:
        program: ATen program, quantized as the backend wants it.
        backend: What to lower to.

    Raises:
        NothingDelegatedError: no node would be delegated; lists the reasons.
        LowerdeckError: the backend gives a node neither a partition nor a reason, or a size has no upper bound.
    """
    lowering = backend.lowering(program)
    io_boundary.keep_io_boundary_on_cpu(lowering)
    edge_config = lowering.edge_config or EdgeCompileConfig()
    kept = _record_preserved_ops(lowering.partitioner)
    with quick_graphs(), _planning(lowering, backend) as plan:
        manager = to_edge_transform_and_lower(
            program,
            transform_passes=lowering.transform_passes,
            partitioner=[lowering.partitioner],
            compile_config=edge_config,
        )
    return Partitioned(
        program=manager.exported_program(),
        edge_config=edge_config,
        preserved_ops=kept[0],
        plan=_require_delegation(plan),
    )


def preserved_ops(program: ExportedProgram, backend: Backend) -> PreservedOps:
    """What the backend's partitioner keeps from being decomposed: all by which its options act on the edge program.

    Args:
        program: ATen program, quantized as the backend wants it.
        backend: What to lower to.

    Returns:
        The same as `Partitioned.preserved_ops`, without making the edge program.
    """
    partitioner = backend.lowering(program).partitioner
    with quick_graphs():
        functional = partitioner.transform_for_pre_decomposition(program).run_decompositions({})
    return _preserved_nodes(functional, partitioner.ops_to_not_decompose(functional))


def _record_preserved_ops(partitioner: Partitioner) -> list[PreservedOps]:
    """What `partitioner` will answer when to_edge_transform_and_lower asks what to keep whole, a call after the other.

    The first time it asks about the functional program, before anything is decomposed.
    """
    answers: list[PreservedOps] = []
    ask = partitioner.ops_to_not_decompose

    def ask_and_record(program: ExportedProgram) -> Any:
        answer = ask(program)
        if not answers:
            answers.append(_preserved_nodes(program, answer))
        return answer

    partitioner.ops_to_not_decompose = ask_and_record
    return answers


def _preserved_nodes(program: ExportedProgram, answer: Any) -> PreservedOps:
    operators, preserves = answer
    nodes = [node for node in program.graph.nodes if node.op == "call_function" and node.target in operators]
    return sorted(map(str, operators)), [node.name for node in nodes if preserves is None or preserves(node)]


def replan(edge: EdgeProgramManager, backend: Backend) -> DelegationPlan:
    """The plan for an edge program that `partition` made before, with other options that leave the program as it is.

    Args:
        edge: As it was stored.
        backend: With options that differ in Backend.delegation_options at most, and keep the same whole.

    Raises:
        NothingDelegatedError: no node would be delegated; lists the reasons.
    """
    lowering = backend.lowering(edge.exported_program())
    io_boundary.keep_io_boundary_on_cpu(lowering)
    with quick_graphs(), _planning(lowering, backend) as plan:
        edge.to_backend(lowering.partitioner)
    return _require_delegation(plan)


@contextmanager
def _planning(lowering: Lowering, backend: Backend) -> Iterator[list[DelegationPlan]]:
    """While open, the partitioner of `lowering` delegates nothing; the value gains the plan of what it would have."""
    plans: list[DelegationPlan] = []
    with lowering.reasons() if lowering.reasons else nullcontext(_no_reason_given) as reason:

        def keep(program: ExportedProgram) -> None:
            nodes, outputs = planned_nodes(program, reason)
            plan = DelegationPlan(
                backend=backend.name, nodes=tuple(nodes), outputs=outputs, converter=backend.converter()
            )
            plans.append(plan)

        _plan_only(lowering.partitioner, keep)
        yield plans


def _no_reason_given(node: torch.fx.Node) -> Reason:
    return Reason(code=ReasonCode.UNKNOWN, message="the backend gives no reasons")


def _require_delegation(plans: list[DelegationPlan]) -> DelegationPlan:
    """The one plan, of which something has to be delegated."""
    (plan,) = plans
    if not plan.delegated_compute_nodes:
        raise NothingDelegatedError(_nothing_delegated_message(plan), plan)
    return plan


def _plan_only(partitioner: Partitioner, keep: Callable[[ExportedProgram], None]) -> None:
    """Make `partitioner` show its tags to `keep` and then delegate nothing.

    The instance itself is changed, because ExecuTorch asks a partitioner for more than its two methods.
    """
    decide = partitioner.partition

    def partition_nothing(program: ExportedProgram) -> PartitionResult:
        result = decide(program)
        keep(result.tagged_exported_program)
        for node in result.tagged_exported_program.graph.nodes:
            node.meta.pop(DELEGATION_TAG, None)
        # ExecuTorch checks last that no operator kept whole is left; here all are left, for convert to lower.
        partitioner.ops_to_not_decompose = lambda program: ([], None)
        return PartitionResult(tagged_exported_program=result.tagged_exported_program, partition_tags={})

    partitioner.partition = partition_nothing


def _nothing_delegated_message(plan: DelegationPlan) -> str:
    by_operator_and_reason: dict[tuple[str, str], list[str]] = {}
    for node in plan.nodes:
        if node.compute and node.reason:
            by_operator_and_reason.setdefault((node.operator, f"{node.reason.code} {node.reason.check}"), []).append(
                str(node.reason)
            )
    most = sorted(by_operator_and_reason.items(), key=lambda item: -len(item[1]))[:10]
    listed = "\n".join(f"  {len(messages)} x {operator}: {messages[0]}" for (operator, _), messages in most)
    return (
        f"{plan.backend} would take none of the {plan.compute_nodes} compute nodes, so the program would run on the "
        f"CPU alone:\n{listed}\nChoose a quantization that the backend delegates, or another target."
    )
