"""EthosUPartitioner with the chosen options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import torch
from executorch.backends.arm.ethosu import EthosUCompileSpec, EthosUPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase

from lowerdeck.backends.ethos_u.options import CHECKS, OPERATORS, Options
from lowerdeck.backends.ethos_u.reasons import RejectionRecorder
from lowerdeck.contracts.errors import ConfigurationError, LowerdeckError
from lowerdeck.contracts.partition_hooks import (
    HookPosition,
    PartitionHook,
    PreservedOperators,
    PreserveOperators,
)
from lowerdeck.contracts.plan import Reason, ReasonCode
from lowerdeck.delegation.exclusion import excluded_by, mark_before_partition, matches_aten_node
from lowerdeck.graph.nodes import operator_name
from lowerdeck.registry import import_paths

if TYPE_CHECKING:
    from torch.export import ExportedProgram

_NO_CPU_KERNEL = ("eye", "hardsigmoid", "hardswish", "linspace", "pad", "silu")
"""ATen operators that the partitioner keeps whole, and that ExecuTorch's CPU kernels have only in pieces."""
_Reasons = Callable[[], AbstractContextManager[Callable[[torch.fx.Node], Reason | None]]]


def create_partitioner(compile_spec: EthosUCompileSpec, options: Options) -> tuple[EthosUPartitioner, _Reasons]:
    """The partitioner for `options`, and what to open around its decision to learn its reasons.

    Raises:
        ConfigurationError: what an import path names is not a check, or not an operator.
    """
    checks = [_UserCheck(path, _create_check(path)) for path in options.additional_checks]
    partitioner = EthosUPartitioner(compile_spec, [_ExclusionCheck(), *checks])
    for path in options.custom_partition_ops:
        partitioner.register_custom_partition_op(_operator(path))
    return partitioner, RejectionRecorder(_user_check_reason).recording


def partition_hooks(options: Options) -> tuple[PartitionHook, ...]:
    """What acts around Arm's partitioner."""

    def preserve_delegated(preserve: PreserveOperators, program: ExportedProgram) -> PreservedOperators:
        """Operators that stay on the CPU are decomposed as they would be without a delegate."""
        operators, preserves = preserve(program)
        assert preserves is not None, "Arm's partitioner decides for each node"
        return operators, lambda node: preserves(node) and not matches_aten_node(node, options)

    return (
        PartitionHook(
            position=HookPosition.BACKEND, ops_to_not_decompose=preserve_delegated if options.excludes_any else None
        ),
        mark_before_partition(options),
    )


class _ExclusionCheck(OperatorSupportBase):
    """Refuses nodes that the options exclude."""

    def is_node_supported(self, submodules: Mapping[str, torch.nn.Module], node: torch.fx.Node) -> bool:
        excluded = excluded_by(node)
        if excluded is not None:
            _check_has_cpu_kernel(node, excluded)
        return excluded is None


class _UserCheck(OperatorSupportBase):
    """A check of `additional_checks`, whose errors become messages."""

    def __init__(self, path: str, check: OperatorSupportBase) -> None:
        self.path = path
        self._check = check

    def is_node_supported(self, submodules: Mapping[str, torch.nn.Module], node: torch.fx.Node) -> bool:
        try:
            supported = self._check.is_node_supported(submodules, node)
        except Exception as error:  # whatever a user's code raises
            raise LowerdeckError(
                f"{CHECKS}: {self.path} raised {type(error).__name__} at {node.name}: {error}"
            ) from error
        if not supported:
            _check_has_cpu_kernel(node, f"additional_checks: {self.path}")
        return bool(supported)


def _create_check(path: str) -> OperatorSupportBase:
    create = import_paths.import_callable(path, CHECKS)
    try:
        check = create()
    except Exception as error:  # whatever a user's code raises
        raise ConfigurationError(f"{CHECKS}: {path} called without arguments raised {error!r}") from error
    if not isinstance(check, OperatorSupportBase):
        raise ConfigurationError(
            f"{CHECKS}: {path} makes a {type(check).__name__}; it has to make an OperatorSupportBase of "
            "torch.fx.passes.operator_support"
        )
    return check


def _operator(path: str) -> torch._ops.OpOverload:
    operator = import_paths.import_object(path, OPERATORS)
    if not isinstance(operator, torch._ops.OpOverload):
        raise ConfigurationError(
            f"{OPERATORS}: {path} is a {type(operator).__name__}; it has to be an operator with its overload, as "
            "torch.ops.my_library.my_operator.default"
        )
    return operator


def _check_has_cpu_kernel(node: torch.fx.Node, excluded_by_option: str) -> None:
    """Raise LowerdeckError where nothing on the CPU executes `node`.

    By operator or module it would have been found in the ATen program already, and decomposed.
    """
    name = operator_name(node)
    if name.removeprefix("aten.").partition(".")[0] in _NO_CPU_KERNEL:
        raise LowerdeckError(
            f"target.options.{excluded_by_option} keeps {node.name} off the NPU, for which {name} was kept whole, and "
            "ExecuTorch has no CPU kernel for that. Name it by operators_not_to_delegate or modules_not_to_delegate "
            "instead, so that it is decomposed"
        )


def _user_check_reason(check: OperatorSupportBase) -> Reason | None:
    """Why `check` refused a node, where it is one of the checks of this module."""
    match check:
        case _UserCheck():
            message = f"refused by target.options.additional_checks: {check.path}"
            return Reason(code=ReasonCode.USER_CHECK, message=message, check=check.path)
        case _ExclusionCheck():
            return Reason(code=ReasonCode.EXCLUDED, message="excluded by the configuration")
    return None
