"""Step partition: quantized program -> edge program and delegation plan, without the backend's compiler."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower
from executorch.exir.backend.partitioner import PartitionResult
from torch._export.verifier import SpecViolationError

from lowerdeck.compat.fast_graph_passes import fast_graph_passes
from lowerdeck.conformance.programs import edge_deviation
from lowerdeck.contracts.backends import Backend
from lowerdeck.contracts.conformance import ConformanceSettings
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.contracts.lowering import Lowering
from lowerdeck.contracts.partition_hooks import (
    HookPosition,
    Partition,
    PartitionHook,
    PreservedOperators,
    PreserveOperators,
)
from lowerdeck.contracts.plan import DelegationPlan, NothingDelegatedError, PlannedNode, Reason, ReasonCode, listed
from lowerdeck.delegation.exclusion import Subject, recorded_subjects, same_matches
from lowerdeck.delegation.fallback import lowering_of
from lowerdeck.delegation.partition_chain import partition_chain
from lowerdeck.delegation.plan_builder import GetReason, planned_nodes
from lowerdeck.graph import library_errors
from lowerdeck.graph.nodes import DELEGATION_TAG

if TYPE_CHECKING:
    from executorch.exir import EdgeProgramManager
    from torch.export import ExportedProgram

_WITH_KERNELS = (
    *(torch.ops.aten.bitwise_left_shift.Tensor, torch.ops.aten.bitwise_left_shift.Tensor_Scalar),
    *(torch.ops.aten.bitwise_right_shift.Tensor, torch.ops.aten.bitwise_right_shift.Tensor_Scalar),
)
"""Operators that ExecuTorch has kernels for although they are no core ATen operators."""
_NOT_CORE = re.compile(r"Operator torch\._ops\.(\S+) is not in Core ATen opset")


@dataclass(frozen=True, kw_only=True)
class PreservedOps:
    """What a partitioner preserves from decomposition."""

    operators: list[str]
    """Names of the operators that it may preserve."""
    nodes: list[str]
    """Names of the nodes that it preserves."""
    subjects: list[Subject] = field(compare=False)
    """What options were asked about to decide this."""

    def stored(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """The fields for JSON, with the `options` that decided them: see `preserves_alike`."""
        return {"options": dict(options), **asdict(self)}


@dataclass(frozen=True, kw_only=True)
class Partitioned:
    """An edge program and the partitioner's decisions about it."""

    program: ExportedProgram
    """Edge-dialect program after the backend's passes, before lowering."""
    edge_config: EdgeCompileConfig
    """The configuration of the edge program."""
    preserved_ops: PreservedOps
    plan: DelegationPlan


def partition(program: ExportedProgram, backend: Backend) -> Partitioned:
    """Run the backend's partitioner on `program`, and record its decisions instead of compiling partitions.

    Args:
        program: ATen program, quantized for the backend.
        backend: The backend to lower to.

    Raises:
        NothingDelegatedError: no node would be delegated; the message lists the reasons.
        LowerdeckError: a node has neither a partition nor a reason, no processor of the target computes it, or a size
            has no upper bound.
    """
    lowering = lowering_of(backend, program)
    edge_config = lowering.edge_config or EdgeCompileConfig(_core_aten_ops_exception_list=list(_WITH_KERNELS))
    with fast_graph_passes(), _planning(lowering, backend) as planner:
        try:
            manager = to_edge_transform_and_lower(
                program,
                transform_passes=lowering.transform_passes,
                partitioner=[partition_chain(lowering, planner.hook)],
                compile_config=edge_config,
            )
        except SpecViolationError as error:
            raise _not_core_error(error, backend) from error
    assert planner.preserved_ops is not None, "ExecuTorch determines preserved operators before it partitions"
    return Partitioned(
        program=manager.exported_program(),
        edge_config=edge_config,
        preserved_ops=planner.preserved_ops,
        plan=_require_delegation(planner.plan),
    )


def _not_core_error(error: SpecViolationError, backend: Backend) -> Exception:
    """An error that names the operators that are neither delegated nor decomposed; `error` where it names none."""
    named = _NOT_CORE.search(str(error))
    if named is None:
        return error
    nodes = library_errors.handled_operators(error, named[1])
    places = ", ".join(map(library_errors.described_node, nodes)) or named[1]
    return LowerdeckError(
        f"{backend.name} does not delegate {named[1]}, and ExecuTorch has no CPU kernel for it: {places}\n"
        "Rewrite that line of the model with core ATen operators (torch's documentation lists them), or choose a "
        "target that delegates it"
    )


def partition_conforming(
    read_program: Callable[[], ExportedProgram],
    backend: Backend,
    samples: Sequence[tuple[torch.Tensor, ...]],
    settings: ConformanceSettings,
    report: Callable[[str], None],
) -> Partitioned:
    """`partition`, with a check that the edge program computes what the quantized program does.

    The plan lists a difference that `settings` accept.

    Args:
        read_program: Returns the quantized program; called again for the check, because passes modify it.
        backend: The backend to lower to.
        samples: Inputs of the model to try; calibration samples.
        settings: What to do about a difference.
        report: Shows a line to the user.

    Raises:
        LowerdeckError: the edge program computes something else, and `settings` do not accept it; or see `partition`.
    """
    made = partition(read_program(), backend)
    places: dict[str, list[str]] = {}
    for node in made.plan.nodes:
        if node.compute and node.reason is not None and node.reason.code is ReasonCode.NOT_COMPILED:
            places.setdefault(node.reason.message, []).append(node.described)
    for message, nodes in places.items():
        report(f"stays on the CPU: {listed(nodes, 5)}: {message}")
    deviation = edge_deviation(read_program(), made.program, samples[: settings.num_samples])
    if deviation is not None:
        message = (
            f"the backend's passes made a program that computes something else than the quantized model: {deviation}"
        )
        if settings.on_mismatch != "warn":
            raise LowerdeckError(
                f"{message}\nKeep that module in float (quantization.keep_float), choose another quantization, or "
                "accept the result (evaluation.conformance.on_mismatch: warn)"
            )
        report(message)
        made = replace(made, plan=replace(made.plan, mismatches=(f"edge program: {deviation}",)))
    return made


def preserves_alike(
    options: Mapping[str, Any],
    read_program: Callable[[], ExportedProgram],
    backend: Backend,
    stored: Mapping[str, Any],
) -> bool:
    """Whether a partitioner preserves the same for a build with `options` as for a stored edge program.

    Args:
        options: Backend.decomposition_options of this build.
        read_program: Returns the quantized program; called, which takes seconds, where `subjects` do not suffice.
        backend: The backend to lower to.
        stored: `PreservedOps.stored` of that program.
    """
    subjects = [(operator, tuple(modules)) for operator, modules in stored["subjects"]]
    if same_matches(subjects, stored["options"], options):
        return True
    before = PreservedOps(operators=stored["operators"], nodes=stored["nodes"], subjects=subjects)
    return preserved_ops(read_program(), backend) == before


def preserved_ops(program: ExportedProgram, backend: Backend) -> PreservedOps:
    """`Partitioned.preserved_ops`, determined without making the edge program.

    The edge program depends on the backend's options only through these.

    Args:
        program: ATen program, quantized for the backend.
        backend: The backend to lower to.
    """
    partitioner = partition_chain(lowering_of(backend, program))
    with fast_graph_passes():
        functional = partitioner.transform_for_pre_decomposition(program).run_decompositions({})
    return _preserved_nodes(functional, partitioner.ops_to_not_decompose)[1]


def _preserved_nodes(program: ExportedProgram, preserve: PreserveOperators) -> tuple[PreservedOperators, PreservedOps]:
    with recorded_subjects() as subjects:
        preserved = operators, preserves = preserve(program)
        nodes = [node for node in program.graph.nodes if node.op == "call_function" and node.target in operators]
        names = [node.name for node in nodes if preserves is None or preserves(node)]
    return preserved, PreservedOps(operators=sorted(map(str, operators)), nodes=names, subjects=sorted(subjects))


def replan(
    edge: EdgeProgramManager, backend: Backend, faulty: Mapping[str, Reason] = MappingProxyType({})
) -> DelegationPlan:
    """The plan for an edge program of `partition` under other options, which leave the program unchanged.

    Args:
        edge: The stored edge program.
        backend: Has options that differ in Backend.delegation_options at most, and the same preserved_ops.
        faulty: Nodes that the delegate computes wrongly or does not compile, each with its reason; they stay on
            the CPU.

    Raises:
        NothingDelegatedError: no node would be delegated; the message lists the reasons.
    """
    lowering = lowering_of(backend, edge.exported_program())
    with fast_graph_passes(), _planning(lowering, backend) as planner:
        edge.to_backend(partition_chain(lowering, planner.hook, faulty=faulty))
    return _require_delegation(planner.plan)


class _Planner:
    """Records what the partitioner would delegate, and prevents delegation."""

    def __init__(self, backend: Backend, reason: GetReason, fallback_reason: GetReason | None) -> None:
        self._backend, self._reason, self._fallback_reason = backend, reason, fallback_reason
        self.plan: DelegationPlan | None = None
        self.preserved_ops: PreservedOps | None = None
        """The partitioner's first choice, for the functional program before any decomposition."""

    @property
    def hook(self) -> PartitionHook:
        """The hook around the partitioner."""
        return PartitionHook(
            position=HookPosition.STEP, partition=self._partition, ops_to_not_decompose=self._ops_to_not_decompose
        )

    def _partition(self, decide: Partition, program: ExportedProgram) -> PartitionResult:
        tagged = decide(program).tagged_exported_program
        nodes, outputs = planned_nodes(tagged, self._reason, self._backend.processor, self._fallback_reason)
        self.plan = DelegationPlan(
            backend=self._backend.name,
            nodes=tuple(nodes),
            outputs=outputs,
            fallback=None if self._backend.fallback is None else self._backend.fallback.name,
            converter=self._backend.converter(),
        )
        for node in tagged.graph.nodes:
            node.meta.pop(DELEGATION_TAG, None)
        return PartitionResult(tagged_exported_program=tagged, partition_tags={})

    def _ops_to_not_decompose(self, preserve: PreserveOperators, program: ExportedProgram) -> PreservedOperators:
        if self.plan is not None:
            # ExecuTorch finally checks that no preserved operator is left; here all are left for convert to lower.
            return [], None
        if self.preserved_ops is not None:
            return preserve(program)
        preserved, self.preserved_ops = _preserved_nodes(program, preserve)
        return preserved


@contextmanager
def _planning(lowering: Lowering, backend: Backend) -> Iterator[_Planner]:
    """A planner that uses the reasons of the backend's partitioner, recorded while the context is open."""
    of_fallback = nullcontext() if lowering.fallback is None else _reasons(lowering.fallback)
    with _reasons(lowering) as reason, of_fallback as fallback_reason:
        yield _Planner(backend, reason, fallback_reason)


def _reasons(lowering: Lowering) -> AbstractContextManager[GetReason]:
    return nullcontext(_no_reason_given) if lowering.reasons is None else lowering.reasons()


def _no_reason_given(node: torch.fx.Node) -> Reason:
    return Reason(code=ReasonCode.UNKNOWN, message="the backend gives no reasons")


def _require_delegation(plan: DelegationPlan | None) -> DelegationPlan:
    """The plan, if it delegates anything."""
    assert plan is not None, "ExecuTorch has partitioned the program"
    if not plan.accelerated_compute_nodes:
        raise NothingDelegatedError(_nothing_delegated_message(plan), plan)
    return plan


def _nothing_delegated_message(plan: DelegationPlan) -> str:
    if not plan.compute_nodes:
        return (
            f"the model computes nothing that {plan.backend} could be given: it returns its inputs or constants as "
            "they are\nReturn what the model's layers compute"
        )
    nodes_by_reason: dict[tuple[str, str], list[PlannedNode]] = {}
    for node in plan.nodes:
        if node.compute and node.reason:
            key = (node.operator, f"{node.reason.code} {node.reason.check}")
            nodes_by_reason.setdefault(key, []).append(node)
    most = sorted(nodes_by_reason.values(), key=lambda nodes: -len(nodes))[:10]
    lines = "\n".join(f"  {listed([node.described for node in nodes], 1)}: {nodes[0].reason}" for nodes in most)
    return (
        f"{plan.backend} would delegate none of the {plan.compute_nodes} compute nodes, so the program would run on "
        f"the CPU alone:\n{lines}\nChoose a quantization that the backend delegates, or another target."
    )
