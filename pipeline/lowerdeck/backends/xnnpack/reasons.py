"""Why XnnpackPartitioner left a node on the CPU.

It has a config for every operator that XNNPACK executes, and asks that one about a node. A config that says no says why
in a WhyNoPartition record, which `logs.refusals` catches with the condition and the values that decided; the few that
say no in silence are asked again. What has no config, or was not chosen, nobody asks about.
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

from lowerdeck.backends.xnnpack import Options
from lowerdeck.backends.xnnpack.logs import Refused
from lowerdeck.contracts.plan import Reason, ReasonCode
from lowerdeck.delegation.exclusion import excluded_by
from lowerdeck.delegation.rejections.rejection import refusal
from lowerdeck.graph.nodes import is_compute, operator_name

DEFAULT_CONFIGS = {config.__name__: config for config in operator_configs.ALL_PARTITIONER_CONFIGS}
CONFIGS = DEFAULT_CONFIGS | {"EluConfig": generic_node_configs.EluConfig}
_CONFIG_OF = {config.target_name: name for name, config in CONFIGS.items()}
"""What a config is for, e.g. `convolution.default`, -> its name."""
_CODES = (
    (r"static param|must be static|must be a parameter", ReasonCode.NOT_CONSTANT),
    (r"dynamic shapes|dynamic output|[Ss]ymbolic|statically known|inferred dimension", ReasonCode.DYNAMIC_SHAPE),
    (r"dequant|quantiz|qparam|scale/zp|precision|dtype|fp16", ReasonCode.DTYPE),
    (r"input rank|4D tensors, got|1D \+ 2D|invalid shape|concatenation of", ReasonCode.SHAPE),
)
"""What a config's words are about; all else are constraints on arguments."""
Check = Callable[[torch.fx.Node, ExportedProgram], bool]


class Reasons:
    """What is known about one program's nodes when its partitioner has decided."""

    def __init__(self, options: Options, checks: Mapping[str, Check]) -> None:
        """`checks` are those of the chosen configs, by what they are for."""
        self._options, self._checks = options, checks
        self._program: ExportedProgram | None = None
        self._refused: Mapping[str, Refused] = {}
        self._fused: dict[str, torch.fx.Node] = {}

    def ask_about(self, program: ExportedProgram, refused: Mapping[str, Refused]) -> None:
        """`program` is what the partitioner decides about, `refused` by name what its configs say no to."""
        self._program, self._refused = program, refused

    def stays_with(self, node: torch.fx.Node, activation: torch.fx.Node) -> None:
        """`node` is not delegated because it is one operation with `activation`, which is excluded."""
        self._fused[node.name] = activation

    def of(self, node: torch.fx.Node) -> Reason:
        """Why `node`, which the options do not exclude by name, is not delegated."""
        operator = operator_of(node)
        name = _CONFIG_OF.get(operator)
        if name is None:
            return _without_config(node)
        check = self._checks.get(operator)
        if check is None:
            return self._not_chosen(name)
        if node.name in self._fused:
            return _one_with(self._fused[node.name])
        if node.name in self._refused:
            return self._said(node, name, self._refused[node.name])
        assert self._program is not None, "reasons are asked for after partitioning"
        silent = refusal(check, node, self._program)
        if silent is not None:
            return silent.reason(_check_of(name, silent.function), ReasonCode.CONSTRAINT)
        return _without_config(node) if not is_compute(node) else _left_out(name)

    def _not_chosen(self, name: str) -> Reason:
        if self._options.configs is not None:
            option, words = "configs", f"excluded by target.options.configs, which lacks {name}"
        elif name in self._options.excluded_configs:
            option, words = "excluded_configs", f"excluded by target.options.excluded_configs: {name}"
        else:
            option = "additional_configs"
            words = f"ExecuTorch leaves out {name} by default; target.options.additional_configs adds it"
        return Reason(code=ReasonCode.EXCLUDED, words=words, values={"option": option, "config": name})

    def _said(self, node: torch.fx.Node, name: str, refused: Refused) -> Reason:
        """What a config says, as a reason."""
        check = _check_of(name, refused.refusal.function)
        if refused.words == "not enabled precision types":
            return Reason(
                code=ReasonCode.EXCLUDED,
                words="excluded by target.options.config_precisions",
                check=check,
                values={
                    "option": "config_precisions",
                    "config_precisions": list(self._options.config_precisions or ()),
                },
            )
        if refused.words == "invalid dtype":
            return replace(_dtypes(node), check=check)
        found = (code for pattern, code in _CODES if re.search(pattern, refused.words))
        code = next(found, ReasonCode.CONSTRAINT)
        if code is ReasonCode.SHAPE and "torch.SymInt" in refused.words:
            code = ReasonCode.DYNAMIC_SHAPE
        return Reason(code=code, words=refused.words, check=check, values=refused.refusal.values)


def operator_of(node: torch.fx.Node) -> str:
    """The operator as configs name it, e.g. `convolution.default`; empty for what is no operator."""
    return format_target_name(getattr(node.target, "__name__", "")) if node.op == "call_function" else ""


def tensors_at(node: torch.fx.Node) -> list[torch.Tensor]:
    """What `node` gives."""
    value = node.meta.get("val")
    values: Iterable[Any] = value if isinstance(value, (tuple, list)) else (value,)
    return [item for item in values if isinstance(item, torch.Tensor)]


def _check_of(name: str, function: str) -> str:
    """The check of a config, which may be inherited, e.g. `AddConfig.check_common_constraints`."""
    return f"{name}.{function.rpartition('.')[2]}"


def _without_config(node: torch.fx.Node) -> Reason:
    """What XNNPACK has no operator for, or has as a part of another one only."""
    operator = operator_name(node)
    if is_compute(node):
        words = f"XNNPACK has no operator config for {operator}"
        return Reason(code=ReasonCode.NO_CONVERTER, words=words, values={"operator": operator})
    if not tensors_at(node) and not isinstance(node.meta.get("val"), (tuple, list)):
        words = "it finds out a size that varies, which the delegate does not take as a value"
        return Reason(code=ReasonCode.DYNAMIC_SHAPE, words=words)
    for other in _belongs_to(node):
        if "delegation_tag" not in other.meta:
            words = f"is delegated only together with the {operator_name(other)} that it belongs to, which is not"
            return Reason(code=ReasonCode.NEIGHBOUR, words=words, node=other.name)
    words = "converts number formats for operators that the delegate computes in floats, or for the CPU"
    return Reason(code=ReasonCode.BOUNDARY, words=words)


def _belongs_to(node: torch.fx.Node) -> list[torch.fx.Node]:
    """The operators whose part a getitem, quantize or dequantize node would be.

    A getitem and a quantize node belong to what they take; a dequantize node, and what chooses a scale for it, to all
    that take it.
    """
    operator = operator_name(node)
    dynamic = any(operator_of(source) == "getitem" for source in node.all_input_nodes[1:])
    if operator != "getitem" and (".dequantize" in operator or ".choose_qparams" in operator or dynamic):
        users = [user for user in node.users if user.op == "call_function"]
        return [found for user in users for found in ([user] if is_compute(user) else _belongs_to(user))]
    sources = [source for source in node.all_input_nodes[:1] if source.op == "call_function"]
    if sources and operator == "getitem" and ".choose_qparams" in operator_name(sources[0]):
        return [found for user in node.users for found in _belongs_to(user)]
    return sources


def _one_with(activation: torch.fx.Node) -> Reason:
    option, _, pattern = str(excluded_by(activation)).partition(": ")
    return Reason(
        code=ReasonCode.EXCLUDED,
        words=f"quantized, it is one operation with {activation.name}, which is excluded",
        values={"option": option, "pattern": pattern},
        node=activation.name,
    )


def _left_out(name: str) -> Reason:
    words = f"{name} takes it, and it was left out when partitions were formed"
    return Reason(code=ReasonCode.PARTITIONING, words=words, check="ConfigerationBasedPartitioner.generate_partitions")


def _dtypes(node: torch.fx.Node) -> Reason:
    """Configs say `invalid dtype` of empty tensors, and of sizes among the arguments, as well."""
    if any(isinstance(source.meta.get("val"), torch.SymInt) for source in node.all_input_nodes):
        return Reason(code=ReasonCode.DYNAMIC_SHAPE, words="invalid dtype: it takes a size that varies")
    tensors = [tensor for source in (*node.all_input_nodes, node) for tensor in tensors_at(source)]
    shapes = [list(tensor.shape) for tensor in tensors if 0 in tensor.shape]
    if shapes:
        return Reason(code=ReasonCode.SHAPE, words="invalid dtype: a tensor is empty", values={"shapes": shapes})
    dtypes = list(dict.fromkeys(str(tensor.dtype).removeprefix("torch.") for tensor in tensors))
    words = f"invalid dtype: {', '.join(dtypes)}"
    return Reason(code=ReasonCode.DTYPE, words=words, values={"dtypes": dtypes})
