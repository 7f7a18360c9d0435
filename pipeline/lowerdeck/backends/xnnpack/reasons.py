"""Determines why XnnpackPartitioner left a node on the CPU.

The partitioner has a config for every operator that XNNPACK executes. A config that refuses a node logs a
WhyNoPartition record, which `logs.record_rejections` captures with the condition and the decisive values; checks that
log nothing are run again. Operators without a config, or with a config that is not chosen, are never checked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from executorch.backends.xnnpack.partition import config as operator_configs
from executorch.backends.xnnpack.partition.config import generic_node_configs
from executorch.exir.backend.canonical_partitioners.config_partitioner import format_target_name
from torch.export import ExportedProgram

from lowerdeck.backends.xnnpack.logs import LoggedRejection
from lowerdeck.backends.xnnpack.options import Options
from lowerdeck.contracts.plan import Reason, ReasonCode
from lowerdeck.delegation.exclusion import exclusion_reason
from lowerdeck.delegation.rejections.rejection import explain_rejection
from lowerdeck.graph.nodes import DELEGATION_TAG, is_compute, operator_name

DEFAULT_CONFIGS = {config.__name__: config for config in operator_configs.ALL_PARTITIONER_CONFIGS}
CONFIGS = DEFAULT_CONFIGS | {"EluConfig": generic_node_configs.EluConfig}
_CONFIG_OF = {config.target_name: name for name, config in CONFIGS.items()}
"""Operator, e.g. `convolution.default`, -> name of its config."""
_CODES = (
    (r"static param|must be static|must be a parameter", ReasonCode.NOT_CONSTANT),
    (r"dynamic shapes|dynamic output|[Ss]ymbolic|statically known|inferred dimension", ReasonCode.DYNAMIC_SHAPE),
    (r"dequant|quantiz|qparam|scale/zp|precision|dtype|fp16", ReasonCode.DTYPE),
    (r"input rank|4D tensors, got|1D \+ 2D|invalid shape|concatenation of", ReasonCode.SHAPE),
)
"""Pattern in a config's message -> code; all others are constraints on arguments."""
Check = Callable[[torch.fx.Node, ExportedProgram], bool]


class Reasons:
    """Reasons for the nodes of one program, after its partitioner has decided."""

    def __init__(self, options: Options, checks: Mapping[str, Check]) -> None:
        """`checks` are those of the chosen configs, by operator."""
        self._options, self._checks = options, checks
        self._program: ExportedProgram | None = None
        self._rejections: Mapping[str, LoggedRejection] = {}
        self._fused: dict[str, torch.fx.Node] = {}

    def set_program(self, program: ExportedProgram, rejections: Mapping[str, LoggedRejection]) -> None:
        """Set the program to partition, and the rejections of its configs by name of the node."""
        self._program, self._rejections = program, rejections

    def add_fused_exclusion(self, node: torch.fx.Node, activation: torch.fx.Node) -> None:
        """Record that `node` is not delegated because it is fused with `activation`, which is excluded."""
        self._fused[node.name] = activation

    def reason(self, node: torch.fx.Node) -> Reason:
        """Return why `node`, which is not excluded itself, is not delegated."""
        operator = operator_of(node)
        name = _CONFIG_OF.get(operator)
        if name is None:
            return _without_config(node)
        check = self._checks.get(operator)
        if check is None:
            return self._config_not_enabled(name)
        if node.name in self._fused:
            return _fused_with_excluded(self._fused[node.name])
        if node.name in self._rejections:
            return self._logged_reason(node, name, self._rejections[node.name])
        assert self._program is not None, "reasons are asked for after partitioning"
        unlogged = explain_rejection(check, node, self._program)
        if unlogged is not None:
            return unlogged.reason(_check_of(name, unlogged.function), ReasonCode.CONSTRAINT)
        return _without_config(node) if not is_compute(node) else _not_partitioned(name)

    def _config_not_enabled(self, name: str) -> Reason:
        if self._options.configs is not None:
            option, message = "configs", f"excluded by target.options.configs, which lacks {name}"
        elif name in self._options.excluded_configs:
            option, message = "excluded_configs", f"excluded by target.options.excluded_configs: {name}"
        else:
            option = "additional_configs"
            message = f"ExecuTorch leaves out {name} by default; target.options.additional_configs adds it"
        return Reason(code=ReasonCode.EXCLUDED, message=message, values={"option": option, "config": name})

    def _logged_reason(self, node: torch.fx.Node, name: str, rejection: LoggedRejection) -> Reason:
        """The reason that a config logged."""
        check = _check_of(name, rejection.rejection.function)
        if rejection.message == "not enabled precision types":
            return Reason(
                code=ReasonCode.EXCLUDED,
                message="excluded by target.options.config_precisions",
                check=check,
                values={
                    "option": "config_precisions",
                    "config_precisions": list(self._options.config_precisions or ()),
                },
            )
        if rejection.message == "invalid dtype":
            return replace(_invalid_dtype(node), check=check)
        found = (code for pattern, code in _CODES if re.search(pattern, rejection.message))
        code = next(found, ReasonCode.CONSTRAINT)
        if code is ReasonCode.SHAPE and "torch.SymInt" in rejection.message:
            code = ReasonCode.DYNAMIC_SHAPE
        return Reason(code=code, message=rejection.message, check=check, values=rejection.rejection.values)


def operator_of(node: torch.fx.Node) -> str:
    """Return the configs' name of the operator, e.g. `convolution.default`; empty for other nodes."""
    return format_target_name(getattr(node.target, "__name__", "")) if node.op == "call_function" else ""


def tensors_at(node: torch.fx.Node) -> list[torch.Tensor]:
    """Return the output tensors of `node`."""
    value = node.meta.get("val")
    values: Iterable[Any] = value if isinstance(value, (tuple, list)) else (value,)
    return [item for item in values if isinstance(item, torch.Tensor)]


def _check_of(name: str, function: str) -> str:
    """The name of a config's check, which may be inherited, e.g. `AddConfig.check_common_constraints`."""
    return f"{name}.{function.rpartition('.')[2]}"


def _without_config(node: torch.fx.Node) -> Reason:
    """The reason of an operator that XNNPACK lacks, or has only as a part of another one."""
    operator = operator_name(node)
    if is_compute(node):
        message = f"XNNPACK has no operator config for {operator}"
        return Reason(code=ReasonCode.NO_CONVERTER, message=message, values={"operator": operator})
    if not tensors_at(node) and not isinstance(node.meta.get("val"), (tuple, list)):
        message = "it finds out a size that varies, which the delegate does not take as a value"
        return Reason(code=ReasonCode.DYNAMIC_SHAPE, message=message)
    for other in _owners(node):
        if DELEGATION_TAG not in other.meta:
            message = f"is delegated only together with the {operator_name(other)} that it belongs to, which is not"
            return Reason(code=ReasonCode.NEIGHBOUR, message=message, node=other.name)
    message = "converts number formats for operators that the delegate computes in floats, or for the CPU"
    return Reason(code=ReasonCode.BOUNDARY, message=message)


def _owners(node: torch.fx.Node) -> list[torch.fx.Node]:
    """The operators that a getitem, quantize or dequantize node belongs to.

    A getitem and a quantize node belong to their inputs; a dequantize node, and the nodes that choose its scale, to its
    users.
    """
    operator = operator_name(node)
    dynamic = any(operator_of(source) == "getitem" for source in node.all_input_nodes[1:])
    if operator != "getitem" and (".dequantize" in operator or ".choose_qparams" in operator or dynamic):
        users = [user for user in node.users if user.op == "call_function"]
        return [found for user in users for found in ([user] if is_compute(user) else _owners(user))]
    sources = [source for source in node.all_input_nodes[:1] if source.op == "call_function"]
    if sources and operator == "getitem" and ".choose_qparams" in operator_name(sources[0]):
        return [found for user in node.users for found in _owners(user)]
    return sources


def _fused_with_excluded(activation: torch.fx.Node) -> Reason:
    reason = exclusion_reason(activation)
    assert reason is not None, "an excluded activation has a reason"
    message = f"quantized, it is one operation with {activation.name}, which is excluded"
    return replace(reason, message=message, node=activation.name)


def _not_partitioned(name: str) -> Reason:
    message = f"{name} takes it, and it was left out when partitions were formed"
    return Reason(
        code=ReasonCode.PARTITIONING, message=message, check="ConfigerationBasedPartitioner.generate_partitions"
    )


def _invalid_dtype(node: torch.fx.Node) -> Reason:
    """The reason behind `invalid dtype`, which configs also log for empty tensors and for sizes as arguments."""
    if any(isinstance(source.meta.get("val"), torch.SymInt) for source in node.all_input_nodes):
        return Reason(code=ReasonCode.DYNAMIC_SHAPE, message="invalid dtype: it takes a size that varies")
    tensors = [tensor for source in (*node.all_input_nodes, node) for tensor in tensors_at(source)]
    shapes = [list(tensor.shape) for tensor in tensors if 0 in tensor.shape]
    if shapes:
        return Reason(code=ReasonCode.SHAPE, message="invalid dtype: a tensor is empty", values={"shapes": shapes})
    dtypes = list(dict.fromkeys(str(tensor.dtype).removeprefix("torch.") for tensor in tensors))
    message = f"invalid dtype: {', '.join(dtypes)}"
    return Reason(code=ReasonCode.DTYPE, message=message, values={"dtypes": dtypes})
