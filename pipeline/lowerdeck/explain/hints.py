"""How to make a node delegable, or why that is unnecessary: by the check that refused it, else by its reason code."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from lowerdeck.contracts.plan import PlannedNode, Reason, ReasonCode
from lowerdeck.explain.constraints import cortex_m, ethos_u, neutron, xnnpack
from lowerdeck.explain.graph import PlanGraph
from lowerdeck.explain.shapes import FIXED_SIZES, ShapeChange
from lowerdeck.explain.undelegated_node import Rule, UndelegatedNode, format_shape, next_multiple
from lowerdeck.graph.nodes import DEQUANTIZE, QUANTIZE

_RULES: Mapping[str, Sequence[Rule]] = {
    "cortex_m": cortex_m.RULES,
    "ethos_u": ethos_u.RULES,
    "neutron": neutron.RULES,
    "xnnpack": xnnpack.RULES,
}
_CODES_WITH_RULES = (
    ReasonCode.CONSTRAINT,
    ReasonCode.TARGET_CONSTRAINT,
    ReasonCode.SHAPE,
    ReasonCode.DTYPE,
    ReasonCode.NOT_CONSTANT,
    ReasonCode.DYNAMIC_SHAPE,
    ReasonCode.PARTITIONING,
)
_COPIES = {"dim_order_ops._to_dim_order_copy.default", "aten._to_copy.default"}
_HARD_SIGMOID = {"aten.add.Tensor", "aten.clamp.default", "aten.div.Tensor"}
"""Operators of a hard sigmoid in the edge program."""
_U85 = "build for an Ethos-U85 (`target: ethos_u85_256`), which takes it as it is"
_SIGMOID = "this is a hard sigmoid, written out: use nn.Sigmoid, which the quantizer and the NPU have"
_MAX_NAMES = 5
_REPLACEMENTS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "neutron": neutron.REPLACEMENTS,
    "xnnpack": xnnpack.REPLACEMENTS,
}
_DIVISOR = re.compile(r"(?:divisible by|multiple of|%)\s*(\w+)")
_CHANNELS = re.compile(r"(?:^|_)channels$")


def hint(node: PlannedNode, graph: PlanGraph, reason: Reason | None = None) -> str:
    """How to make `node` delegable; empty if it is delegated or nothing is known.

    Args:
        node: A node of the graph.
        graph: Graph of the whole plan: a hint may concern a neighbour.
        reason: The reason to remove, e.g. the node's `delegate_reason`; its `reason` by default.
    """
    reason = reason or node.reason
    if reason is None:
        return ""
    refused = UndelegatedNode(node=node, reason=reason, graph=graph)
    if node.operator in _COPIES and node.inputs and not refused.activations:
        users = ", ".join(dict.fromkeys(user.operator for user in graph.users(node)))
        return f"converts a constant for {users}, and goes when that is replaced; it costs next to nothing"
    if refused.reason.code in _CODES_WITH_RULES:
        rules = _RULES.get(refused.backend, ())
        by_check = next((each.remedy(refused) for each in rules if each.pattern.search(refused.text)), "")
        if text := by_check or _divisible(refused):
            return f"{text}; or {_U85}" if refused.has_better_device else text
    return _BY_CODE[refused.reason.code](refused)


def shape_change(node: PlannedNode, graph: PlanGraph) -> ShapeChange | None:
    """The change of the exported shapes that the hint for `node` means; None if it means another one."""
    if node.reason is None:
        return None
    refused = UndelegatedNode(node=node, reason=node.reason, graph=graph)
    rules = _RULES.get(refused.backend, ()) if node.reason.code in _CODES_WITH_RULES else ()
    matching = next((each for each in rules if each.pattern.search(refused.text)), None)
    if matching is not None:
        return matching.reshape(refused)
    return FIXED_SIZES if node.reason.code == ReasonCode.DYNAMIC_SHAPE else None


def _divisible(refused: UndelegatedNode) -> str:
    """For numbers of channels that have to be multiples of a number in the message or the values."""
    found = _DIVISOR.search(refused.text)
    named = found[1] if found else "groups" if "divisible" in refused.text else ""
    by = int(named) if named.isdigit() else refused.number(named)
    uneven = [
        f"pad the {value} {name.replace('_', ' ').replace('out ', 'output ').replace('inp ', 'input ')} to "
        f"{next_multiple(value, by)}"
        for name, value in refused.reason.values.items()
        if by and name != named and _CHANNELS.search(name) and isinstance(value, int) and value % by
    ]
    return " and ".join(uneven)


def _excluded(refused: UndelegatedNode) -> str:
    option, config = refused.value("option"), refused.value("config")
    match option:
        case "configs":
            return f"add {config} to `target.options.configs`, or set that to null"
        case "excluded_configs":
            return f"take {config} out of `target.options.excluded_configs`"
        case "additional_configs":
            return f"`target.options.additional_configs: [{config}]` delegates it"
        case "config_precisions":
            return "add its precision to `target.options.config_precisions`, or set that to null"
    if refused.node.excluded_by is None and refused.reason.node:
        return _neighbour_hint(refused)
    return f"take {refused.node.excluded_by or option or 'it'} out of the configuration to delegate it"


def _no_converter(refused: UndelegatedNode) -> str:
    backend, operator = refused.backend, refused.node.operator
    if operator in _COPIES:
        return "remove the conversion of dtype or memory format from the model, or do it before the model"
    if refused.is_free_view:
        return "nothing to fix: no kernel runs"
    if operator in _HARD_SIGMOID and in_hard_sigmoid(refused):
        return _SIGMOID
    if operator in _REPLACEMENTS.get(backend, {}):
        return f"write {_REPLACEMENTS[backend][operator][0]} in its place, which the backend has"
    return f"replace {operator} by operators that the backend has: `lowerdeck operators --backend {backend}` lists them"


def _not_quantized(refused: UndelegatedNode) -> str:
    if not any(node.operator.startswith(QUANTIZE) for node in refused.graph.plan.nodes):
        return "quantize the model: `quantization: int8` in params.yaml"
    region = refused.float_region()
    if len(region) > 1:
        return _float_region_hint(refused, region)
    return (
        "quantize it: take its module out of quantization.keep_float and rules if it is there; else the quantizer has "
        "no pattern for it, and another operator is needed"
    )


def _float_region_hint(refused: UndelegatedNode, region: Sequence[PlannedNode]) -> str:
    """For a node that computes in floats because its neighbours do."""
    if in_hard_sigmoid(refused):
        return _SIGMOID
    lacking = [node.operator for node in region if node.reason and node.reason.code == ReasonCode.NO_CONVERTER]
    if lacking:
        return (
            f"computes in floats together with {_join_unique(lacking)}, which the backend does not have: replace "
            "those, so that all of it can be quantized"
        )
    others = _join_unique([node.operator for node in region if node is not refused.node])
    return (
        f"nothing is quantized between it and {others}: take them out of quantization.keep_float and rules if they are "
        "there; else put an operator between them that the quantizer knows"
    )


def _join_unique(names: Sequence[str]) -> str:
    """The first of `names`, each once, and the number of the others."""
    unique = list(dict.fromkeys(names))
    return ", ".join(unique[:_MAX_NAMES]) + (f" and {len(unique) - _MAX_NAMES} more" if unique[_MAX_NAMES:] else "")


def in_hard_sigmoid(refused: UndelegatedNode) -> bool:
    """Whether the node belongs to a hard sigmoid that Neutron gets written out."""
    possible = _HARD_SIGMOID | _COPIES
    if refused.graph.plan.backend != "neutron" or refused.node.operator not in possible:
        return False  # its region may be the whole network
    return _HARD_SIGMOID <= {node.operator for node in refused.float_region()} <= possible


def _dtype(refused: UndelegatedNode) -> str:
    dtypes = ", ".join(dict.fromkeys(tensor.dtype for tensor in refused.activations))
    given = f" instead of {dtypes}" if dtypes else ""
    if refused.graph.plan.backend == "xnnpack":
        return f"use a dtype that XNNPACK computes in{given}: float32, or int8 by `quantization: int8`"
    return f"quantize it with all of its inputs and outputs to int8{given}"


def _shape(refused: UndelegatedNode) -> str:
    given = f" ({format_shape(refused.shape)} now)" if refused.shape else ""
    return f"export with another shape{given}: model.input_shapes, or a reshape before it"


def _not_constant(refused: UndelegatedNode) -> str:
    computed = [tensor.source for tensor in refused.activations[1:]]
    given = f" {computed[0]}" if len(computed) == 1 else ""
    return f"make its weight or other argument{given} a parameter or buffer instead of computing it"


def _target_constraint(refused: UndelegatedNode) -> str:
    if refused.has_better_device:
        return f"{_U85}, or replace it by operators that this device has"
    return f"another device may have it; on this one {_constraint(refused)}"


def _constraint(refused: UndelegatedNode) -> str:
    named = ", ".join(name for name in refused.reason.values if name.isidentifier() and name != "args")
    return f"change {named} in the model" if named else "change its arguments in the model"


def _neighbour_hint(refused: UndelegatedNode) -> str:
    other = refused.graph.nodes.get(refused.reason.node)
    if other is None:
        return ""
    if other.reason is None:
        return f"belongs to {other.name}"
    # A chain of neighbours ends at a node with another reason; a cycle would be a bug of the backend.
    seen = {refused.node.name, other.name}
    while other.reason and other.reason.code == ReasonCode.NEIGHBOUR and other.reason.node not in seen:
        seen.add(other.reason.node)
        other = refused.graph.nodes.get(other.reason.node, other)
    own = "" if other.reason is None or other.reason.code == ReasonCode.NEIGHBOUR else hint(other, refused.graph)
    return f"goes with {other.name}" + (f": {own}" if own else "")


def _boundary(refused: UndelegatedNode) -> str:
    side = {QUANTIZE: "inputs", DEQUANTIZE: "outputs"}
    for operators, name in side.items():
        at_boundary = (
            not refused.graph.sources(refused.node) if name == "inputs" else not refused.graph.users(refused.node)
        )
        if refused.node.operator.startswith(operators) and at_boundary:
            return f"nothing to fix; `target.options.quantized_{name}: true` has the program's {name} in integers"
    return "nothing to fix: the CPU converts numbers at the edge of a partition; fewer partitions need fewer of these"


def _no_op_partition(refused: UndelegatedNode) -> str:
    if refused.graph.plan.backend == "neutron":
        return "nothing to gain; `target.options.allow_no_op_partitions: true` delegates it all the same"
    return "nothing to gain: the partition would compute nothing"


def _partitioning(refused: UndelegatedNode) -> str:
    around = [
        node for node in (*refused.graph.sources(refused.node), *refused.graph.users(refused.node)) if node.reason
    ]
    if around:
        return f"make the nodes around it delegable: {', '.join(node.name for node in around[:3])}"
    return "make the nodes around it delegable, so that one partition can contain them all"


_FAULT = "a fault of the backend: write it differently, or report it to the vendor"
_BY_CODE: Mapping[ReasonCode, Callable[[UndelegatedNode], str]] = {
    ReasonCode.EXCLUDED: _excluded,
    ReasonCode.WRONG_RESULT: lambda refused: _FAULT,
    ReasonCode.NOT_COMPILED: lambda refused: _FAULT,
    ReasonCode.USER_CHECK: lambda refused: "change your own check, or take it out of the target's options",
    ReasonCode.NO_CONVERTER: _no_converter,
    ReasonCode.NOT_QUANTIZED: _not_quantized,
    ReasonCode.DTYPE: _dtype,
    ReasonCode.SHAPE: _shape,
    ReasonCode.DYNAMIC_SHAPE: lambda refused: "export with fixed sizes: model.dynamic_shapes: []",
    ReasonCode.NOT_CONSTANT: _not_constant,
    ReasonCode.CONSTRAINT: _constraint,
    ReasonCode.TARGET_CONSTRAINT: _target_constraint,
    ReasonCode.NEIGHBOUR: _neighbour_hint,
    ReasonCode.BOUNDARY: _boundary,
    ReasonCode.NO_OP_PARTITION: _no_op_partition,
    ReasonCode.PARTITIONING: _partitioning,
    ReasonCode.UNKNOWN: lambda refused: "",
}
