"""EthosUPartitioner with the chosen options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
from executorch.backends.arm.ethosu import EthosUCompileSpec, EthosUPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase

from lowerdeck.backends.ethos_u import CHECKS, OPERATORS, Options, exclusion
from lowerdeck.backends.ethos_u.reasons import Rejections
from lowerdeck.contracts.errors import ConfigurationError, LowerdeckError
from lowerdeck.contracts.plan import Reason, ReasonCode
from lowerdeck.delegation.exclusion import Exclusion, excluded_by, mark_before_partition, names_in_aten
from lowerdeck.graph.nodes import operator_name
from lowerdeck.registry import import_paths

if TYPE_CHECKING:
    from torch.export import ExportedProgram

_WITHOUT_KERNEL = ("eye", "hardsigmoid", "hardswish", "linspace", "pad", "silu")
"""ATen operators that the partitioner keeps whole, and that ExecuTorch's CPU kernels have only in pieces."""
_Reasons = Callable[[], AbstractContextManager[Callable[[torch.fx.Node], Reason | None]]]


def create_partitioner(compile_spec: EthosUCompileSpec, options: Options) -> tuple[EthosUPartitioner, _Reasons]:
    """The partitioner for `options`, and what to open around its decision to learn its reasons.

    Raises:
        ConfigurationError: a check or an operator that is named by import path is none.
    """
    checks = [_Check(path, _created(path)) for path in options.additional_checks]
    partitioner = EthosUPartitioner(compile_spec, [_NotExcluded(), *checks])
    for path in options.custom_partition_ops:
        partitioner.register_custom_partition_op(_operator(path))
    excluded = exclusion(options)
    _decompose_what_is_excluded(partitioner, excluded)
    mark_before_partition(partitioner, excluded)
    return partitioner, Rejections(partitioner, _own_reason).listening


class _NotExcluded(OperatorSupportBase):
    """Refuses nodes that the options exclude."""

    def is_node_supported(self, submodules: Mapping[str, torch.nn.Module], node: torch.fx.Node) -> bool:
        excluded = excluded_by(node)
        if excluded is not None:
            _refuse_without_kernel(node, excluded)
        return excluded is None


class _Check(OperatorSupportBase):
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
            _refuse_without_kernel(node, f"additional_checks: {self.path}")
        return bool(supported)


def _created(path: str) -> OperatorSupportBase:
    create = import_paths.imported_callable(path, CHECKS)
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
    operator = import_paths.imported(path, OPERATORS)
    if not isinstance(operator, torch._ops.OpOverload):
        raise ConfigurationError(
            f"{OPERATORS}: {path} is a {type(operator).__name__}; it has to be an operator with its overload, as "
            "torch.ops.my_library.my_operator.default"
        )
    return operator


def _decompose_what_is_excluded(partitioner: EthosUPartitioner, excluded: Exclusion) -> None:
    """Have operators that stay on the CPU decomposed as they would be without a delegate."""
    original = partitioner.ops_to_not_decompose

    def ops_to_not_decompose(program: ExportedProgram) -> tuple[list[Any], Callable[[torch.fx.Node], bool]]:
        operators, takes = original(program)
        return operators, lambda node: takes(node) and not names_in_aten(node, excluded)

    if excluded:
        partitioner.ops_to_not_decompose = ops_to_not_decompose


def _refuse_without_kernel(node: torch.fx.Node, refused_by: str) -> None:
    """Raise LowerdeckError where nothing on the CPU executes `node`.

    By operator or module it would have been found in the ATen program already, and decomposed.
    """
    name = operator_name(node)
    if name.removeprefix("aten.").partition(".")[0] in _WITHOUT_KERNEL:
        raise LowerdeckError(
            f"target.options.{refused_by} keeps {node.name} off the NPU, for which {name} was kept whole, and "
            "ExecuTorch has no CPU kernel for that. Name it by operators_not_to_delegate or modules_not_to_delegate "
            "instead, so that it is decomposed"
        )


def _own_reason(check: OperatorSupportBase) -> Reason | None:
    """What to say of a node that `check` refused, where that is one of those here; those excluded say it themselves."""
    match check:
        case _Check():
            words = f"refused by target.options.additional_checks: {check.path}"
            return Reason(code=ReasonCode.OWN_CHECK, words=words, check=check.path)
        case _NotExcluded():
            return Reason(code=ReasonCode.EXCLUDED, words="excluded by the configuration")
    return None
