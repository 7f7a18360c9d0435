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
from lowerdeck.delegation.plan_builder import TAG, planned_nodes
from lowerdeck.graph import io_boundary

if TYPE_CHECKING:
    import torch
    from executorch.exir import EdgeProgramManager
    from executorch.exir.backend.partitioner import Partitioner
    from torch.export import ExportedProgram

KeptWhole = tuple[list[str], list[str]]
"""Operators that a partitioner may keep from being decomposed, and the nodes that it does keep, by their names."""


@dataclass(frozen=True, kw_only=True)
class Partitioned:
    """An edge program and what the partitioner decided about it."""

    program: ExportedProgram
    """Edge-dialect program after the backend's passes, before lowering."""
    edge_config: EdgeCompileConfig
    """What it was made with."""
    kept_whole: KeptWhole
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
    io_boundary.keep_border(lowering)
    edge_config = lowering.edge_config or EdgeCompileConfig()
    kept = _remembered(lowering.partitioner)
    with quick_graphs(), _planning(lowering, backend) as plan:
        manager = to_edge_transform_and_lower(
            program,
            transform_passes=lowering.transform_passes,
            partitioner=[lowering.partitioner],
            compile_config=edge_config,
        )
    return Partitioned(
        program=manager.exported_program(), edge_config=edge_config, kept_whole=kept[0], plan=_some_of(plan)
    )


def kept_whole(program: ExportedProgram, backend: Backend) -> KeptWhole:
    """What the backend's partitioner keeps from being decomposed: all by which its options act on the edge program.

    Args:
        program: ATen program, quantized as the backend wants it.
        backend: What to lower to.

    Returns:
        The same as `Partitioned.kept_whole`, without making the edge program.
    """
    partitioner = backend.lowering(program).partitioner
    with quick_graphs():
        functional = partitioner.transform_for_pre_decomposition(program).run_decompositions({})
    return _kept(functional, partitioner.ops_to_not_decompose(functional))


def _remembered(partitioner: Partitioner) -> list[KeptWhole]:
    """What `partitioner` will answer when to_edge_transform_and_lower asks what to keep whole, a call after the other.

    The first time it asks about the functional program, before anything is decomposed.
    """
    answers: list[KeptWhole] = []
    ask = partitioner.ops_to_not_decompose

    def ask_and_remember(program: ExportedProgram) -> Any:
        answer = ask(program)
        if not answers:
            answers.append(_kept(program, answer))
        return answer

    partitioner.ops_to_not_decompose = ask_and_remember
    return answers


def _kept(program: ExportedProgram, answer: Any) -> KeptWhole:
    operators, takes = answer
    nodes = [node for node in program.graph.nodes if node.op == "call_function" and node.target in operators]
    return sorted(map(str, operators)), [node.name for node in nodes if takes is None or takes(node)]


def plan_again(edge: EdgeProgramManager, backend: Backend) -> DelegationPlan:
    """The plan for an edge program that `partition` made before, with other options that leave the program as it is.

    Args:
        edge: As it was stored.
        backend: With options that differ in BackendDeclaration.delegation_options at most, and keep the same whole.

    Raises:
        NothingDelegatedError: no node would be delegated; lists the reasons.
    """
    lowering = backend.lowering(edge.exported_program())
    io_boundary.keep_border(lowering)
    with quick_graphs(), _planning(lowering, backend) as plan:
        edge.to_backend(lowering.partitioner)
    return _some_of(plan)


@contextmanager
def _planning(lowering: Lowering, backend: Backend) -> Iterator[list[DelegationPlan]]:
    """While open, the partitioner of `lowering` delegates nothing; the value gains the plan of what it would have."""
    plans: list[DelegationPlan] = []
    with lowering.reasons() if lowering.reasons else nullcontext(_not_said) as reason:

        def keep(program: ExportedProgram) -> None:
            nodes, outputs = planned_nodes(program, reason)
            plan = DelegationPlan(
                backend=backend.name, nodes=tuple(nodes), outputs=outputs, converter=backend.converter()
            )
            plans.append(plan)

        _plan_only(lowering.partitioner, keep)
        yield plans


def _not_said(node: torch.fx.Node) -> Reason:
    return Reason(code=ReasonCode.UNKNOWN, words="the backend gives no reasons")


def _some_of(plans: list[DelegationPlan]) -> DelegationPlan:
    """The one plan, of which something has to be delegated."""
    (plan,) = plans
    if not plan.delegated_compute_nodes:
        raise NothingDelegatedError(_nothing_delegated(plan), plan)
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
            node.meta.pop(TAG, None)
        # ExecuTorch checks last that no operator kept whole is left; here all are left, for convert to lower.
        partitioner.ops_to_not_decompose = lambda program: ([], None)
        return PartitionResult(tagged_exported_program=result.tagged_exported_program, partition_tags={})

    partitioner.partition = partition_nothing


def _nothing_delegated(plan: DelegationPlan) -> str:
    alike: dict[tuple[str, str], list[str]] = {}
    for node in plan.nodes:
        if node.compute and node.reason:
            alike.setdefault((node.operator, f"{node.reason.code} {node.reason.check}"), []).append(str(node.reason))
    most = sorted(alike.items(), key=lambda item: -len(item[1]))[:10]
    listed = "\n".join(f"  {len(words)} x {operator}: {words[0]}" for (operator, _), words in most)
    return (
        f"{plan.backend} would take none of the {plan.compute_nodes} compute nodes, so the program would run on the "
        f"CPU alone:\n{listed}\nChoose a quantization that the backend delegates, or another target."
    )
