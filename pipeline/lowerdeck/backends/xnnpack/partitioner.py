"""XnnpackPartitioner with the chosen options; reasons.py explains why it left a node on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from executorch.backends.xnnpack.partition.config.xnnpack_config import ConfigPrecisionType
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.backends.xnnpack.utils.quant_utils import is_dequant
from executorch.exir.backend.partitioner import PartitionResult
from torch.export import ExportedProgram

from lowerdeck.backends.xnnpack import logs
from lowerdeck.backends.xnnpack.options import Options
from lowerdeck.backends.xnnpack.reasons import CONFIGS, DEFAULT_CONFIGS, Check, Reasons, operator_of, tensors_at
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.contracts.plan import Reason, ReasonCode
from lowerdeck.delegation.exclusion import (
    excluded_by,
    is_excluded,
    keep_off,
    matches_aten_node,
    missing_kernel_error,
)
from lowerdeck.graph.state import state_nodes

_LINEAR = ("linear.default", "addmm.default", "mm.default")
"""Operators whose configs support bfloat16 and weights as inputs. The constructor sets these flags on all configs, and
convolutions with a bias, or in bfloat16, would then result in a program that the runtime refuses to load."""
_NO_CPU_KERNEL = ("hardswish.default", "max_pool2d.default", "prelu.default")
"""Operators that the partitioner preserves and that ExecuTorch has no CPU kernel for."""
_WEIGHTS = {
    **dict.fromkeys(("linear.default", "convolution.default"), (1, 2)),
    "addmm.default": (0, 2),
    "mm.default": (1,),
    **dict.fromkeys(("bmm.default", "prelu.default"), (1,)),
}
"""Positions of weights and bias, which the partitioner takes for constants where they are buffers."""
_READS_STATE = Reason(
    code=ReasonCode.NOT_CONSTANT,
    message="its weights or bias are state, which changes from call to call, and XNNPACK takes constants there",
    check="get_deps",
)
_OF_SCALARS = ("quantize_per_tensor.default", "dequantize_per_tensor.default")


class ConfiguredPartitioner(XnnpackPartitioner):  # type: ignore[misc]  # ExecuTorch has no types
    """XnnpackPartitioner for `target.options`."""

    def __init__(self, options: Options) -> None:
        names = options.configs or [
            *(name for name in DEFAULT_CONFIGS if name not in options.excluded_configs),
            *options.additional_configs,
        ]
        self._options = options
        super().__init__(
            configs=[self._guarded(CONFIGS[name]) for name in names],
            config_precisions=[ConfigPrecisionType[name] for name in options.config_precisions or ()] or None,
            per_op_mode=options.per_op_mode,
            verbose=options.verbose,
        )
        checks = {operator: config.check_alone for operator, config in self.target_partitioner_configs.items()}
        self.reasons = Reasons(options, checks)
        """Why nodes are not delegated; valid after `partition`."""
        for operator, config in self.target_partitioner_configs.items():
            if operator in _LINEAR:
                config.force_non_static_weights_for_f32_linear = options.force_non_static_weights_for_f32_linear
                config.enable_bf16 = options.enable_bf16

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        """Tag the nodes to delegate, and record the reasons for the others.

        Raises:
            LowerdeckError: an option has no effect on the program.
        """
        _check_options_have_effect(self._options, exported_program.graph)
        _check_has_cpu_kernel(exported_program.graph)
        _keep_products_with_state_off(exported_program)
        with logs.record_rejections() as rejections:
            self.reasons.set_program(exported_program, rejections)
            return super().partition(exported_program)

    def ops_to_not_decompose(self, ep: ExportedProgram) -> tuple[list[Any], Callable[[torch.fx.Node], bool]]:
        """Preserve operators for the delegate, except where they stay on the CPU, which lacks some of them."""
        operators, preserves = super().ops_to_not_decompose(ep)
        state = set(state_nodes(ep))

        def preserves_here(node: torch.fx.Node) -> bool:
            if node.target == torch.ops.aten.prelu.default and (_origin(node.args[1]) in state or _is_flat(node)):
                return False
            return preserves(node) and not matches_aten_node(node, self._options)

        return operators, preserves_here

    def _guarded(self, config: type[Any]) -> type[Any]:
        """`config`, changed to refuse excluded nodes."""
        partitioner = self

        class Guarded(config):  # type: ignore[misc]
            @property
            def check_alone(self) -> Check:
                """The check without the options."""
                check: Check = super().check_constraints
                return check

            def check_constraints(self, node: torch.fx.Node, ep: ExportedProgram) -> bool:
                refused = partitioner._is_excluded(self, node) or _quantizes_scalar(node)
                return not refused and self.check_alone(node, ep)

            def get_partition(self, node: torch.fx.Node, ep: ExportedProgram) -> list[torch.fx.Node]:
                # In float arithmetic an excluded activation need not be fused.
                return [member for member in super().get_partition(node, ep) if not is_excluded(member)]

        return Guarded

    def _is_excluded(self, config: Any, node: torch.fx.Node) -> bool:
        """Whether the options exclude the node or an activation that would be fused with it.

        Excluded nodes must not be checked at all: a check marks the surrounding quantize and dequantize nodes as part
        of a quantized operator, and XNNPACK's serializer then omits them from the program.
        """
        if is_excluded(node):
            return True
        activation = _fused_activation(config, node)
        if activation is None or not is_excluded(activation) or not any(map(is_dequant, node.all_input_nodes)):
            return False
        self.reasons.add_fused_exclusion(node, activation)
        return True


def _check_options_have_effect(options: Options, graph: torch.fx.Graph) -> None:
    """Refuse an option that has no effect on an edge program.

    Raises:
        LowerdeckError: the option has no effect.
    """
    if options.enable_bf16 and not any(
        tensor.dtype == torch.bfloat16 for node in graph.nodes for tensor in tensors_at(node)
    ):
        raise LowerdeckError(
            "target.options.enable_bf16: true has no effect, because the model does not use bfloat16; set it to false"
        )
    if options.force_non_static_weights_for_f32_linear and not any(map(_is_float_linear, graph.nodes)):
        raise LowerdeckError(
            "target.options.force_non_static_weights_for_f32_linear: true has no effect, because the model has no "
            "float linear layer; set it to false"
        )


def _check_has_cpu_kernel(graph: torch.fx.Graph) -> None:
    """Raise LowerdeckError where a node is excluded that ExecuTorch has no CPU kernel for."""
    for node in graph.nodes:
        if is_excluded(node) and operator_of(node) in _NO_CPU_KERNEL:
            raise missing_kernel_error(node, excluded_by(node))


def _keep_products_with_state_off(program: ExportedProgram) -> None:
    """Leave to the CPU what reads state as weights or bias, whose initial value XNNPACK would compile as a constant."""
    state = set(state_nodes(program))
    for node in program.graph.nodes if state else ():
        positions = _WEIGHTS.get(operator_of(node), ())
        if any(_origin(node.args[index]) in state for index in positions if index < len(node.args)):
            keep_off(node, _READS_STATE)


def _origin(value: Any) -> Any:
    """What a value was made of by operators with one operand, such as a transposition, or it is itself."""
    while isinstance(value, torch.fx.Node) and len(value.all_input_nodes) == 1:
        (value,) = value.all_input_nodes
    return value


def _is_flat(prelu: torch.fx.Node) -> bool:
    """Whether it is one of other than images, which XNNPACK's compiler refuses to make channels-last."""
    return bool(prelu.meta["val"].ndim != 4)


def _quantizes_scalar(node: torch.fx.Node) -> bool:
    """Whether a node quantizes or dequantizes a tensor without dimensions, which XNNPACK cannot compile."""
    return operator_of(node) in _OF_SCALARS and node.meta["val"].ndim == 0


def _is_float_linear(node: torch.fx.Node) -> bool:
    return operator_of(node) in _LINEAR and not any(map(is_dequant, node.all_input_nodes))


def _fused_activation(config: Any, node: torch.fx.Node) -> torch.fx.Node | None:
    """The only user of `node`, if `config` fuses it with the operator."""
    users = list(node.users)
    return users[0] if len(users) == 1 and operator_of(users[0]) in getattr(config, "fused_acts", ()) else None
