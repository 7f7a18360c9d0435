"""EthosUPartitioner with the chosen options."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, MutableMapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
from executorch.backends.arm.constants import DQ_OPS, Q_OPS
from executorch.backends.arm.ethosu import EthosUCompileSpec, EthosUPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase

from lowerdeck.backends.ethos_u.options import CHECKS, OPERATORS, Options
from lowerdeck.backends.ethos_u.reasons import RejectionRecorder
from lowerdeck.contracts.errors import ConfigurationError, LowerdeckError
from lowerdeck.contracts.partition_hooks import (
    HookPosition,
    Partition,
    PartitionHook,
    PreservedOperators,
    PreserveOperators,
)
from lowerdeck.contracts.plan import Reason, ReasonCode
from lowerdeck.delegation.exclusion import (
    excluded_by,
    is_excluded,
    mark_before_partition,
    matches_aten_node,
    missing_kernel_error,
)
from lowerdeck.graph.nodes import DELEGATION_TAG, constant_names, operator_name
from lowerdeck.graph.state import state_nodes
from lowerdeck.registry import import_paths

if TYPE_CHECKING:
    from executorch.exir.backend.partitioner import PartitionResult
    from torch.export import ExportedProgram

_NO_CPU_KERNEL = ("eye", "hardsigmoid", "hardswish", "linspace", "pad", "silu")
"""ATen operators that the partitioner preserves and that ExecuTorch has no CPU kernel for."""
_STATE = "lowerdeck_state"
"""Key of `node.meta` that marks the placeholders of state while the partitioner runs."""
_COMPUTED_WEIGHTS = "lowerdeck_computed_weights"
"""The same of layers whose weights or bias are no constants."""
_LAYERS = ("aten.convolution.default", "aten.linear.default")
_Reasons = Callable[[], AbstractContextManager[Callable[[torch.fx.Node], Reason | None]]]


def create_partitioner(compile_spec: EthosUCompileSpec, options: Options) -> tuple[EthosUPartitioner, _Reasons]:
    """Create the partitioner for `options`, and the context that records its reasons.

    Raises:
        ConfigurationError: an import path does not name a check or an operator.
    """
    checks = [_UserCheck(path, _create_check(path)) for path in options.additional_checks]
    own = _ExclusionCheck(), _IntegerStateCheck(), _UnsignedCheck(), _ScalarCheck(), _WeightsCheck()
    partitioner = EthosUPartitioner(compile_spec, [*own, *checks])
    for path in options.custom_partition_ops:
        partitioner.register_custom_partition_op(_operator(path))
    return partitioner, RejectionRecorder(_user_check_reason).recording


def partition_hooks(options: Options) -> tuple[PartitionHook, ...]:
    """Return the hooks around Arm's partitioner."""

    def preserve_delegated(preserve: PreserveOperators, program: ExportedProgram) -> PreservedOperators:
        """Decompose operators that stay on the CPU."""
        operators, preserves = preserve(program)
        assert preserves is not None, "Arm's partitioner always filters nodes"
        return operators, lambda node: preserves(node) and not matches_aten_node(node, options)

    def partition_whole(decide: Partition, program: ExportedProgram) -> PartitionResult:
        for node in state_nodes(program):
            node.meta[_STATE] = True
        for node in _layers_with_computed_weights(program):
            node.meta[_COMPUTED_WEIGHTS] = True
        result = decide(program)
        _leave_control_flow(program.graph_module, result.partition_tags)
        _quantize_results(program.graph, result.partition_tags)
        return result

    return (
        PartitionHook(
            position=HookPosition.BACKEND,
            partition=partition_whole,
            ops_to_not_decompose=preserve_delegated,
        ),
        mark_before_partition(options),
    )


def _leave_control_flow(module: torch.fx.GraphModule, tags: MutableMapping[str, Any]) -> None:
    """Leave the branches of torch.cond to the CPU: no delegation plan has what they would delegate.

    Arm's partitioner also delegates there what it takes of integers, such as a cast of a number.
    """
    for part in module.modules():
        if isinstance(part, torch.fx.GraphModule) and part is not module:
            for node in part.graph.nodes:
                tags.pop(node.meta.pop(DELEGATION_TAG, ""), None)


def _quantize_results(graph: torch.fx.Graph, tags: Container[str]) -> None:
    """Let partitions quantize what they compute.

    Arm's partitioner may propose the quantize node for the partition that reads it, and then leaves it to the CPU: the
    program would expect floats from a partition that computes integers.
    """
    for node in graph.nodes:
        if node.target in Q_OPS and DELEGATION_TAG not in node.meta:
            tag = node.all_input_nodes[0].meta.get(DELEGATION_TAG)
            if tag in tags:
                node.meta[DELEGATION_TAG] = tag


def _layers_with_computed_weights(program: ExportedProgram) -> Iterator[torch.fx.Node]:
    """The layers whose weights or bias depend on an input or on state."""
    state, constants = set(state_nodes(program)), constant_names(program)
    varying = set[torch.fx.Node]()
    for node in program.graph.nodes:
        if node.op == "placeholder":
            is_varying = node in state or node.name not in constants
        else:
            is_varying = not varying.isdisjoint(node.all_input_nodes)
        if is_varying:
            varying.add(node)
        if node.op == "call_function" and operator_name(node) in _LAYERS and not varying.isdisjoint(node.args[1:3]):
            yield node


class _ExclusionCheck(OperatorSupportBase):
    """Refuses excluded nodes."""

    def is_node_supported(self, submodules: Mapping[str, torch.nn.Module], node: torch.fx.Node) -> bool:
        if is_excluded(node):
            _check_has_cpu_kernel(node, excluded_by(node))
        return not is_excluded(node)


class _IntegerStateCheck(OperatorSupportBase):
    """Refuses operators on 64-bit integers of the program's state, which Arm's checks take for constants."""

    def is_node_supported(self, submodules: Mapping[str, torch.nn.Module], node: torch.fx.Node) -> bool:
        return not any(
            _STATE in source.meta and source.meta["val"].dtype == torch.int64 for source in node.all_input_nodes
        )


class _UnsignedCheck(OperatorSupportBase):
    """Refuses operators on bytes without a sign, for which Arm's partitioner would refuse the whole partition."""

    def is_node_supported(self, submodules: Mapping[str, torch.nn.Module], node: torch.fx.Node) -> bool:
        value = node.meta.get("val")
        is_unsigned = isinstance(value, torch.Tensor) and value.dtype == torch.uint8
        return not is_unsigned or node.target in (*Q_OPS, *DQ_OPS)


class _ScalarCheck(OperatorSupportBase):
    """Refuses what makes a scalar of a tensor, such as `x.mean()`: Arm's passes fail at an empty shape."""

    def is_node_supported(self, submodules: Mapping[str, torch.nn.Module], node: torch.fx.Node) -> bool:
        value, *given = (each.meta.get("val") for each in (node, *node.all_input_nodes))
        is_scalar = isinstance(value, torch.Tensor) and value.dim() == 0
        return not (is_scalar and any(isinstance(each, torch.Tensor) and each.dim() > 0 for each in given))


class _WeightsCheck(OperatorSupportBase):
    """Refuses layers whose weights or bias are no constants, on which Arm's compiler fails."""

    def is_node_supported(self, submodules: Mapping[str, torch.nn.Module], node: torch.fx.Node) -> bool:
        return _COMPUTED_WEIGHTS not in node.meta


class _UserCheck(OperatorSupportBase):
    """A check of `additional_checks`; converts its exceptions to LowerdeckError."""

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
            f"{CHECKS}: {path} returns a {type(check).__name__}; it must return an OperatorSupportBase of "
            "torch.fx.passes.operator_support"
        )
    return check


def _operator(path: str) -> torch._ops.OpOverload:
    operator = import_paths.import_object(path, OPERATORS)
    if not isinstance(operator, torch._ops.OpOverload):
        raise ConfigurationError(
            f"{OPERATORS}: {path} is a {type(operator).__name__}; it must be an operator overload, such as "
            "torch.ops.my_library.my_operator.default"
        )
    return operator


def _check_has_cpu_kernel(node: torch.fx.Node, excluded_by_option: str | None) -> None:
    """Raise LowerdeckError where ExecuTorch has no CPU kernel for `node`."""
    if operator_name(node).removeprefix("aten.").partition(".")[0] in _NO_CPU_KERNEL:
        raise missing_kernel_error(node, excluded_by_option)


def _user_check_reason(check: OperatorSupportBase) -> Reason | None:
    """The reason of a check of this module; None for the backend's checks."""
    match check:
        case _UserCheck():
            message = f"refused by target.options.additional_checks: {check.path}"
            return Reason(code=ReasonCode.USER_CHECK, message=message, check=check.path)
        case _IntegerStateCheck():
            return Reason(code=ReasonCode.DTYPE, message="state of 64-bit integers, which the NPU does not have")
        case _UnsignedCheck():
            return Reason(
                code=ReasonCode.DTYPE, message="computes bytes without a sign, which the NPU only reads and writes"
            )
        case _ScalarCheck():
            return Reason(code=ReasonCode.SHAPE, message="makes a scalar of a tensor, and TOSA states no empty shape")
        case _WeightsCheck():
            return Reason(
                code=ReasonCode.NOT_CONSTANT, message="its weights or bias are computed, and the NPU takes constants"
            )
        case _ExclusionCheck():
            return Reason(code=ReasonCode.EXCLUDED, message="excluded by the configuration")
    return None
