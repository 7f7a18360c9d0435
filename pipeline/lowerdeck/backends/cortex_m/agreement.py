"""Whether what another quantizer quantized is what CMSIS-NN computes.

Beneath an NPU (`target.fallback`) most nodes have the quantization that the NPU's quantizer chose. CortexMPassManager
assumes that its own quantizer chose it, and checks little.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from executorch.backends.arm.common.annotation_meta import ArmAnnotationInfo
from executorch.backends.cortex_m.passes.passes_utils import is_channels_last

from lowerdeck.backends.cortex_m.quantizer import is_checked
from lowerdeck.contracts.plan import Reason, ReasonCode
from lowerdeck.graph.nodes import DEQUANTIZE, MARK_OF_LIBRARY, QUANTIZE, is_compute, operator_name
from lowerdeck.runtime.cmsis_nn import repeats_wrongly

if TYPE_CHECKING:
    from torch.fx import Graph, Node

_ONE_SCALE = (
    "avg_pool2d", "constant_pad_nd", "max_pool2d_with_indices", "maximum", "minimum", "permute_copy",
)  # fmt: skip
"""Operators that CMSIS-NN computes on stored integers, so that operands and result need one scale and zero point."""
CONSTANT = "lowerdeck_constant"
"""Key of `node.meta` that marks the placeholders of parameters, buffers and constants."""
_POOLING = ("avg_pool2d", "max_pool2d_with_indices")
_BOUNDS = {torch.int8: (-128, 127)}


def mark_quantized(graph: Graph) -> list[str]:
    """Give nodes of `graph` the mark of Arm's quantizers that another one quantized; returns their names.

    They are surrounded by dequantize and quantize nodes, with nothing but a fused activation between.
    """
    marked = []
    for node in graph.nodes:
        if not is_compute(node) or _is_marked(node) or not _reads_integers(node):
            continue
        follower = _only_user(node)
        chain = [node, follower] if follower is not None and is_compute(follower) else [node]
        if all(operator_name(user).startswith(QUANTIZE) for user in _users(chain[-1])) and _users(chain[-1]):
            unpacked = [user for member in chain for user in member.users if operator_name(user) == "getitem"]
            for member in (*chain, *unpacked):
                give_mark(member)
                marked.append(str(member.name))
    return marked


def give_mark(node: Node) -> None:
    """Let CortexMPassManager take `node` for a quantized one."""
    key = ArmAnnotationInfo.CUSTOM_META_KEY
    annotation = {key: dict(ArmAnnotationInfo(quantized=True)), MARK_OF_LIBRARY: key}
    node.meta["custom"] = {**node.meta.get("custom", {}), **annotation}


def disagreement(node: Node, *, explicit_layout: bool) -> Reason | None:
    """Why CMSIS-NN would compute something else than the quantized `node`; None where its own quantizer checked it."""
    if is_checked(node):
        return None
    scales = other_scales(node) if _short(node) in _ONE_SCALE and not stored_alike(node) else None
    return _other_integers(node) or scales or _other_weights(node) or _other_layout(node, explicit_layout)


def other_sizes(node: Node) -> Reason | None:
    """Why CMSIS-NN would compute another maximum or minimum of tensors of these sizes, or a mean of another size.

    The passes do not read the ceil_mode of average poolings.
    """
    if _short(node) == "avg_pool2d" and any(node.args[4:5]):
        return Reason(code=ReasonCode.CONSTRAINT, message="CMSIS-NN averages without ceil_mode")
    if _short(node) not in ("maximum", "minimum"):
        return None
    shapes = [tuple(each.meta["val"].shape) for each in node.all_input_nodes]
    if not repeats_wrongly(shapes, node.meta["val"].shape):
        return None
    listed = [list(shape) for shape in shapes]
    message = f"CMSIS-NN repeats the elements of operands of these sizes wrongly: {listed}"
    return Reason(code=ReasonCode.CONSTRAINT, message=message, values={"shapes": listed})


def stored_alike(node: Node) -> bool:
    """Whether the operands and the result of a quantized node have one scale and zero point."""
    return len(set(_parameters(node))) <= 1


def _other_integers(node: Node) -> Reason | None:
    for conversion in _conversions(node):
        dtype = conversion.args[5]
        if _is_activation(conversion) and tuple(conversion.args[3:5]) != _BOUNDS.get(dtype):
            bounds = f"{str(dtype).removeprefix('torch.')} of {conversion.args[3]} ... {conversion.args[4]}"
            return Reason(
                code=ReasonCode.DTYPE,
                message=f"CMSIS-NN's operators take int8 of -128 ... 127, and it has {bounds}",
                values={"dtype": str(dtype).removeprefix("torch.")},
            )
    return None


def other_scales(node: Node, computed: str = "CMSIS-NN computes it on stored integers") -> Reason:
    """The reason of a node that is `computed` on integers of different scales."""
    parameters = [list(pair) for pair in dict.fromkeys(_parameters(node))]
    message = f"{computed}, and its operands and results have different scales or zero points"
    return Reason(code=ReasonCode.CONSTRAINT, message=message, values={"scales": parameters})


def _other_weights(node: Node) -> Reason | None:
    if _short(node) != "linear":
        return None
    weights = node.args[1]
    if not isinstance(weights, torch.fx.Node) or "per_channel" not in operator_name(weights):
        return None
    message = "CMSIS-NN's linear layers have one scale for all weights, and these have one for each channel"
    return Reason(code=ReasonCode.CONSTRAINT, message=message, values={"weights": "per_channel"})


def _other_layout(node: Node, explicit_layout: bool) -> Reason | None:
    if _short(node) not in _POOLING or explicit_layout:
        return None
    value = node.meta["val"][0] if isinstance(node.meta["val"], (tuple, list)) else node.meta["val"]
    if is_channels_last(value):
        return None
    shape = list(value.shape)
    message = f"its result {shape} is not channels-last in memory"
    return Reason(code=ReasonCode.CONSTRAINT, message=message, values={"shape": shape})


def _parameters(node: Node) -> list[tuple[float, int]]:
    """(scale, zero point) of every operand and result of `node` that is quantized with one scale."""
    return [(float(each.args[1]), int(each.args[2])) for each in _conversions(node) if _is_activation(each)]


def _conversions(node: Node) -> Iterator[Any]:
    """The dequantize nodes that `node` reads, and the quantize nodes that read it or a fused activation."""
    for source in node.all_input_nodes:
        if operator_name(source).startswith(DEQUANTIZE):
            yield source
    waiting = _users(node)
    while waiting:
        user = waiting.pop()
        if operator_name(user).startswith(QUANTIZE):
            yield user
        elif user.op == "call_function" and _is_marked(user):
            waiting += _users(user)


def _is_activation(conversion: Any) -> bool:
    """Whether `conversion` is of a computed tensor with one scale, instead of a weight or bias."""
    return "per_tensor" in operator_name(conversion) and CONSTANT not in conversion.args[0].meta


def _reads_integers(node: Node) -> bool:
    sources = [source for source in node.all_input_nodes if not operator_name(source).startswith("aten.full")]
    return bool(sources) and all(operator_name(source).startswith(DEQUANTIZE) for source in sources)


def _users(node: Node) -> list[Node]:
    """Users of `node`, through getitem."""
    found: list[Node] = []
    for user in node.users:
        found += _users(user) if operator_name(user) == "getitem" else [user]
    return found


def _only_user(node: Node) -> Node | None:
    users: Sequence[Node] = _users(node)
    return users[0] if len(users) == 1 and users[0].op == "call_function" else None


def _is_marked(node: Node) -> bool:
    return bool(node.meta.get("custom", {}).get(ArmAnnotationInfo.CUSTOM_META_KEY, {}).get("quantized", False))


def _short(node: Node) -> str:
    return operator_name(node).split(".")[1] if "." in operator_name(node) else operator_name(node)
