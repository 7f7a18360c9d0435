"""Nodes that a backend's partitioner left on the CPU, and its own checks asked about them once more."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from lowerdeck.contracts.backends import Backend
from lowerdeck.contracts.lowering import Lowering
from lowerdeck.contracts.plan import DelegationPlan, Reason, ReasonCode
from lowerdeck.steps.partition import partition

Again = Callable[[torch.fx.Node, Reason], bool | None]
"""What the check says now that a reason of a node names; None where that is no check that can be asked alone."""
CONVERTER_CHECKS = ("_node_format_is_supported", "_is_supported_in_IR", "_is_supported_on_target")
"""What a converter of Neutron is asked, in this order."""


@dataclass(kw_only=True)
class Rejections:
    """What a partitioner decided, with its nodes."""

    plan: DelegationPlan
    reasons: dict[torch.fx.Node, Reason]
    """Of the nodes that are not delegated."""
    answers: dict[torch.fx.Node, bool]
    """What the check that a reason names says when it is asked again, where it is one of a backend's own."""

    def named(self, name: str) -> tuple[torch.fx.Node, Reason]:
        """The one rejected node of that name."""
        ((node, reason),) = [(node, reason) for node, reason in self.reasons.items() if node.name == name]
        return node, reason


@dataclass
class Asking:
    """A backend whose reasons are listened to, and whose checks are asked again as each reason is given."""

    backend: Backend
    reasons: dict[torch.fx.Node, Reason] = field(default_factory=dict)
    answers: dict[torch.fx.Node, bool] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.backend, name)

    def lowering(self, program: torch.export.ExportedProgram) -> Lowering:
        """As the backend gives it, listened to."""
        lowering = self.backend.lowering(program)
        decide, reasons = lowering.partitioner.partition, lowering.reasons
        assert reasons is not None
        ask = {"neutron": of_neutron, "ethos_u": of_ethos_u}.get(self.backend.name, of_nothing)
        asked: list[Again] = []

        def partition_and_keep(edge: torch.export.ExportedProgram) -> Any:
            asked.append(ask(lowering.partitioner, edge))
            return decide(edge)

        @contextmanager
        def recording() -> Iterator[Callable[[torch.fx.Node], Reason | None]]:
            with reasons() as reason:

                def heard(node: torch.fx.Node) -> Reason | None:
                    given = reason(node)
                    assert given is not None, f"no reason for {node.name}"
                    self.reasons[node] = given
                    answer = asked[-1](node, given)
                    if answer is not None:
                        self.answers[node] = answer
                    return given

                yield heard

        lowering.partitioner.partition = partition_and_keep
        lowering.reasons = recording
        return lowering


def rejections(program: torch.export.ExportedProgram, backend: Backend) -> Rejections:
    """The step partition, with what its reasons are about."""
    asking: Any = Asking(backend)
    plan = partition(program, asking).plan
    return Rejections(plan=plan, reasons=asking.reasons, answers=asking.answers)


def of_neutron(partitioner: Any, edge: torch.export.ExportedProgram) -> Again:
    """Asks the check that a reason names, and those of the converter before it."""
    from executorch.backends.nxp.backend.edge_program_converter import EdgeProgramToIRConverter
    from executorch.backends.nxp.neutron_partitioner import supported_ops

    mapping = EdgeProgramToIRConverter.map_inputs_to_parameters(edge, partitioner.post_quantization_state_dict)
    options, target = partitioner.custom_delegation_options, partitioner.neutron_target_spec

    def again(node: torch.fx.Node, reason: Reason) -> bool | None:
        if reason.code is ReasonCode.NO_CONVERTER:
            return node.target in supported_ops
        if reason.check == "NeutronSupportedOperators._is_node_quantized":
            return "cluster" in node.meta if reason.code is ReasonCode.NOT_QUANTIZED else None
        converter, _, check = reason.check.partition(".")
        if check not in CONVERTER_CHECKS:
            return None
        asked = supported_ops[node.target]
        assert asked.__name__ == converter
        arguments: dict[str, tuple[Any, ...]] = {
            "_node_format_is_supported": (node,),
            "_is_supported_in_IR": (node, mapping, options),
            "_is_supported_on_target": (node, target, mapping, options),
        }
        for earlier in CONVERTER_CHECKS[: CONVERTER_CHECKS.index(check)]:
            assert getattr(asked, earlier)(*arguments[earlier]), f"{earlier} refuses {node.name} before {check} does"
        return bool(getattr(asked, check)(*arguments[check]))

    return again


def of_ethos_u(partitioner: Any, edge: torch.export.ExportedProgram) -> Again:
    """Asks the check that a reason names by itself, and for an operator that none is for all that could be."""
    from executorch.backends.arm.operator_support import tosa_supported_operators as support
    from executorch.exir.backend.utils import WhyNoPartitionReporter

    spec, reporter = partitioner.tosa_spec, WhyNoPartitionReporter()
    positive = support._positive_checks(spec, edge, reporter)
    negative = support._negative_checks(spec, edge, reporter, [])
    by_name = {type(check).__name__: check for check in (*positive, *negative)}
    by_name["CheckResolvedTensorShapes"] = support.CheckResolvedTensorShapes(reporter)

    def again(node: torch.fx.Node, reason: Reason) -> bool | None:
        if reason.check == "tosa_support_factory":
            return any(check.is_node_supported({}, node) for check in positive)
        check = by_name.get(reason.check)
        return None if check is None else bool(check.is_node_supported({}, node))

    return again


def of_nothing(partitioner: Any, edge: torch.export.ExportedProgram) -> Again:
    """Asks nothing: XNNPACK's configs answer while they partition only."""
    return lambda node, reason: None
