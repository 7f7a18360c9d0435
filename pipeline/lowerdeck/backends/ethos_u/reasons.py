"""Records why Arm's partitioner left a node on the CPU.

A node stays on the CPU for one of three causes: a check in the chain of `tosa_support_factory`, most of which report
why; the cleanup of formed partitions, which removes quantize and dequantize nodes from their boundaries and rejects
whole partitions; and the partitioning itself, which reports nothing. Recording versions replace the chain and the
reporter; the values that a check compared are read from its source at the reporting line (ADR 0027).
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from executorch.backends.arm.constants import DQ_OPS, Q_OPS
from executorch.backends.arm.ethosu import EthosUCompileSpec, EthosUPartitioner
from executorch.exir.backend.utils import ReportRejected, WhyNoPartitionReporter
from torch.fx.passes.operator_support import OperatorSupportBase

from lowerdeck.compat import arm
from lowerdeck.contracts.plan import Reason, ReasonCode
from lowerdeck.delegation.rejections.rejection import Rejection, explain_rejection, explain_rejection_at
from lowerdeck.graph.nodes import DELEGATION_TAG, is_compute

if TYPE_CHECKING:
    from torch.export import ExportedProgram

_CODES = {
    "CheckArmQuantized": ReasonCode.NOT_QUANTIZED,
    "CheckDtypeInputsAndOutputs": ReasonCode.DTYPE,
    "CheckInt64InputsAndOutputs": ReasonCode.DTYPE,
    "CheckKnownUnsupportedTOSASemantics": ReasonCode.DTYPE,
    "CheckProperQuantization": ReasonCode.NOT_QUANTIZED,
    "CheckResolvedTensorShapes": ReasonCode.DYNAMIC_SHAPE,
    "CheckScalarReductionInputs": ReasonCode.SHAPE,
    "RankCheck": ReasonCode.SHAPE,
    "SymbolicShapeSupportCheck": ReasonCode.DYNAMIC_SHAPE,
}
"""Codes of checks with a single purpose; for other checks the compared values determine the code."""
_MOST_CAPABLE_ACCELERATOR = "ethos-u85-256"
"""A node that this accelerator supports and another Ethos-U does not has the code `target_constraint`."""
_BOUNDARY_CHECK = "TOSAPartitioner._detag_boundary_nodes"
_PARTITION_CHECK = "TOSAPartitioner._tag_module"
_PARTITIONING = "CapabilityBasedPartitioner.propose_partitions"
_ExplainUserCheck = Callable[[OperatorSupportBase], Reason | None]


@dataclass(frozen=True, kw_only=True)
class _Report:
    """A check's report on a node."""

    node: torch.fx.Node
    message: str
    check: str
    """Class of the check."""
    rejection: Rejection


class RejectionRecorder:
    """Records the partitioner's decisions and returns the reason for each node on the CPU."""

    def __init__(self, explain_user_check: _ExplainUserCheck) -> None:
        """`explain_user_check` returns the reason of a check of this project; None for the backend's checks."""
        self._explain_user_check = explain_user_check
        self._rejections: dict[torch.fx.Node, Reason] = {}
        self._reports: list[_Report] = []
        self._within_chain = self._is_muted = self._has_uint8 = False
        self._most_capable_support: OperatorSupportBase | None = None

    @contextmanager
    def recording(self) -> Iterator[Callable[[torch.fx.Node], Reason | None]]:
        """Record the partitioner's decisions; the value returns the reason of a node that is not delegated."""
        with (
            arm.CHAIN.active(lambda *checks: _Chain(checks, self)),
            arm.ANY_CHAIN.active(lambda *checks: _AnyOf(checks)),
            arm.REPORTER.active(self._recording_reporter()),
            arm.DETAG_BOUNDARY_NODES.active(self._recording_detag()),
            arm.HAS_INVALID_UINT8.active(self._recording_uint8()),
            arm.CREATE_OPERATOR_SUPPORT.active(self._preparing_most_capable()),
        ):
            yield self.reason

    def reason(self, node: torch.fx.Node) -> Reason | None:
        """Return why `node` is not delegated."""
        if node.target is operator.getitem and DELEGATION_TAG not in node.all_input_nodes[0].meta:
            producer = node.all_input_nodes[0].name
            return Reason(code=ReasonCode.NEIGHBOUR, message=f"is a result of {producer}", node=producer)
        left_out = Reason(
            code=ReasonCode.PARTITIONING, message="supported, but left out of all partitions", check=_PARTITIONING
        )
        return self._rejections.get(node, left_out)

    def run_checks(
        self, checks: Sequence[OperatorSupportBase], submodules: Mapping[str, torch.nn.Module], node: torch.fx.Node
    ) -> bool:
        """Whether all of `checks` support `node`; records the reason of the first one that does not."""
        if self._is_muted:
            return all(check.is_node_supported(submodules, node) for check in checks)
        for check in checks:
            self._reports.clear()
            self._within_chain = True
            supported = check.is_node_supported(submodules, node)
            self._within_chain = False
            if not supported:
                with self._muted():
                    self._rejections[node] = self._reason_of_check(check, node)
                return False
        return True

    @contextmanager
    def _muted(self) -> Iterator[None]:
        """Record no reports while checks are run again for their reasons."""
        before, self._is_muted = self._is_muted, True
        try:
            yield
        finally:
            self._is_muted = before

    def _reason_of_check(self, check: OperatorSupportBase, node: torch.fx.Node) -> Reason:
        user_check_reason = (
            self._explain_user_check(check.operator_support) if isinstance(check, ReportRejected) else None
        )
        if user_check_reason is not None:
            return user_check_reason
        reason = self._check_reason(check, node)
        capable = self._most_capable_support
        if reason.code is not ReasonCode.TARGET_CONSTRAINT and capable and capable.is_node_supported({}, node):
            return replace(reason, code=ReasonCode.TARGET_CONSTRAINT)
        return reason

    def _check_reason(self, check: OperatorSupportBase, node: torch.fx.Node) -> Reason:
        """The reason of `check`, by its own report if there is one."""
        report = next((report for report in self._reports if report.node is node), None)
        if report is not None:
            return _reason(report.rejection, report.check, report.message)
        rejecting_check: Any = check.operator_support if isinstance(check, ReportRejected) else check
        if isinstance(rejecting_check, _AnyOf):
            applicable = [each for each in rejecting_check.checks if node.target in getattr(each, "targets", ())]
            if not applicable:
                return Reason(
                    code=ReasonCode.NO_CONVERTER,
                    message="in no list of operators of the TOSA profile, and no TOSA support check is for it",
                    check="tosa_support_factory",
                )
            rejecting_check = applicable[0]
        # Without a report, only the condition explains the refusal.
        name, check_tosa = type(rejecting_check).__name__, getattr(rejecting_check, "is_node_tosa_supported", None)
        rejection = (
            explain_rejection(check_tosa, node, rejecting_check.tosa_spec)
            if check_tosa
            else explain_rejection(rejecting_check.is_node_supported, {}, node)
        )
        if rejection is None:
            return Reason(code=ReasonCode.UNKNOWN, message="refused, and accepted when it was asked again", check=name)
        return _reason(rejection, name, rejection.message)

    def _recording_reporter(self) -> type[Any]:
        recorder = self

        class Recorded(arm.REPORTER.original()):  # type: ignore[misc]
            def report_reject(self, node: torch.fx.Node, reason: str) -> None:
                super().report_reject(node, reason)
                if not recorder._is_muted:
                    with recorder._muted():
                        recorder._record_report(node, reason, sys._getframe(1))

        return Recorded

    def _record_report(self, node: torch.fx.Node, message: str, frame: FrameType) -> None:
        """Store the report made in `frame`."""
        check = frame.f_locals.get("self") or frame.f_locals.get("support_check")
        if isinstance(check, ReportRejected):
            return  # repeats the refusal of another check
        if self._within_chain:
            name = frame.f_code.co_qualname if check is None else type(check).__name__
            report = _Report(node=node, message=message, check=name, rejection=explain_rejection_at(frame))
            self._reports.append(report)
        elif "partition" in frame.f_locals:
            self._rejections[node] = self._reason_of_partition(message, frame.f_locals["partition"].nodes)
        elif isinstance(source := frame.f_locals.get("input"), torch.fx.Node):
            self._rejections[node] = _float_input_reason(message, source)
        else:
            self._rejections[node] = _reason(explain_rejection_at(frame), frame.f_code.co_qualname, message)

    def _reason_of_partition(self, message: str, nodes: Sequence[torch.fx.Node]) -> Reason:
        """The reason of the nodes of a rejected partition."""
        code = ReasonCode.DTYPE if self._has_uint8 else ReasonCode.NO_OP_PARTITION
        values = {"partition": [node.name for node in nodes if is_compute(node)]}
        return Reason(code=code, message=message, check=_PARTITION_CHECK, values=values)

    def _recording_detag(self) -> Callable[..., None]:
        """Wrap TOSAPartitioner's method to record nodes removed from the boundary of a partition."""
        detag = arm.DETAG_BOUNDARY_NODES.original()

        def detag_boundary_nodes(
            partitioner: EthosUPartitioner, module: Any, tag: str, *arguments: Any, **named: Any
        ) -> None:
            inside = [node for node in module.graph.nodes if node.meta.get(DELEGATION_TAG) == tag]
            detag(partitioner, module, tag, *arguments, **named)
            for node in inside:
                if DELEGATION_TAG not in node.meta and node.target in (*Q_OPS, *DQ_OPS):
                    neighbours = node.all_input_nodes[:1] if node.target in Q_OPS else list(node.users)
                    outside = [other.name for other in neighbours if other.meta.get(DELEGATION_TAG) != tag]
                    self._rejections[node] = Reason(
                        code=ReasonCode.BOUNDARY,
                        message=f"only converts numbers at the boundary of a partition, beside {outside[0]}",
                        check=_BOUNDARY_CHECK,
                        node=outside[0],
                    )

        return detag_boundary_nodes

    def _recording_uint8(self) -> Callable[[EthosUPartitioner, Any, str], bool]:
        """Wrap TOSAPartitioner's method to record its last result."""
        find_uint8 = arm.HAS_INVALID_UINT8.original()

        def partition_has_invalid_uint8(partitioner: EthosUPartitioner, partition: Any, tag: str) -> bool:
            self._has_uint8 = bool(find_uint8(partitioner, partition, tag))
            return self._has_uint8

        return partition_has_invalid_uint8

    def _preparing_most_capable(self) -> Callable[[EthosUPartitioner, ExportedProgram, Any], OperatorSupportBase]:
        """Wrap TOSAPartitioner's method to also create the checks of the most capable Ethos-U on an Ethos-U55."""
        create = arm.CREATE_OPERATOR_SUPPORT.original()

        def create_operator_support(
            partitioner: EthosUPartitioner, program: ExportedProgram, reporter: Any
        ) -> OperatorSupportBase:
            if partitioner.tosa_spec.is_U55_subset:
                with self._muted():
                    other = EthosUPartitioner(EthosUCompileSpec(_MOST_CAPABLE_ACCELERATOR))
                    self._most_capable_support = create(other, program, WhyNoPartitionReporter())
            support: OperatorSupportBase = create(partitioner, program, reporter)
            return support

        return create_operator_support


class _Chain(OperatorSupportBase):
    """Replaces torch's `chain`: supports a node that all checks support."""

    def __init__(self, checks: Sequence[OperatorSupportBase], recorder: RejectionRecorder) -> None:
        self._checks, self._recorder = checks, recorder

    def is_node_supported(self, submodules: Mapping[str, torch.nn.Module], node: torch.fx.Node) -> bool:
        return self._recorder.run_checks(self._checks, submodules, node)


class _AnyOf(OperatorSupportBase):
    """Replaces torch's `any_chain`: supports a node that one of the checks supports."""

    def __init__(self, checks: Sequence[OperatorSupportBase]) -> None:
        self.checks = checks

    def is_node_supported(self, submodules: Mapping[str, torch.nn.Module], node: torch.fx.Node) -> bool:
        return any(check.is_node_supported(submodules, node) for check in self.checks)


def _reason(rejection: Rejection, check: str, message: str) -> Reason:
    code = _CODES.get(check)
    if code is None and "U55" in check:
        code = ReasonCode.TARGET_CONSTRAINT
    by_values = rejection.reason(check, ReasonCode.CONSTRAINT)
    return Reason(code=code or by_values.code, message=message, check=check, values=by_values.values)


def _float_input_reason(message: str, source: torch.fx.Node) -> Reason:
    """The reason of a compute node that reads floats from outside of its partition."""
    is_shared = source.target in DQ_OPS  # removed from the boundary because an outside node also uses it
    code = ReasonCode.BOUNDARY if is_shared else ReasonCode.NOT_QUANTIZED
    return Reason(code=code, message=message, check=_BOUNDARY_CHECK, node=source.name)
