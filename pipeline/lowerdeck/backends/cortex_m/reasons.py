"""Why nodes of an edge program are left to portable kernels instead of CMSIS-NN."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from executorch.backends.cortex_m.passes.aten_to_cortex_m_pass import AtenToCortexMPass
from executorch.backends.cortex_m.passes.passes_utils import is_channels_last, skips_quantized_max_pool2d
from executorch.backends.cortex_m.quantizer import quantizer_support

from lowerdeck.backends.cortex_m.agreement import disagreement, other_scales, other_sizes, stored_alike
from lowerdeck.backends.cortex_m.options import Device
from lowerdeck.backends.cortex_m.passes import ORIGIN, is_annotated, is_replaced
from lowerdeck.backends.cortex_m.quantizer import is_checked
from lowerdeck.contracts.plan import Reason, ReasonCode
from lowerdeck.delegation.exclusion import is_excluded
from lowerdeck.graph.nodes import DEQUANTIZE, QUANTIZE, constant_names, is_compute, operator_name

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Graph, Node

_FUSING = ("convolution", "linear", "add", "sub", "max_pool2d_with_indices")
_FUSED = ("relu", "hardtanh", "hardsigmoid", "clamp")
"""Operators of ATen whose results the passes clamp, and the activations that become such a clamp."""
_ON_INTEGERS = (
    "alias_copy", "amax", "amin", "as_strided_copy", "cat", "clamp", "clone", "expand_copy", "flip", "full",
    "full_like", "gather", "index", "index_put", "index_select", "max", "max_pool2d", "max_pool2d_with_indices",
    "maximum", "min", "minimum", "permute_copy", "pixel_shuffle", "pixel_unshuffle", "repeat", "select_copy",
    "slice_copy", "slice_scatter", "split_copy", "split_with_sizes_copy", "squeeze_copy", "stack", "t_copy",
    "transpose_copy", "unbind_copy", "unfold_copy", "unsqueeze_copy", "upsample_nearest2d", "view_copy", "where",
    "_clone_dim_order", "_to_dim_order_copy",
)  # fmt: skip
"""Operators that give the same on integers of one scale as on what these stand for: they move or compare values."""
_WITH_WEIGHTS = ("aten.convolution.default", "aten.linear.default")
"""Operators whose second argument the passes store in another form."""
_CONVOLUTIONS = ("aten.conv1d.default", "aten.conv2d.default", "aten.conv_transpose2d.input")
_QUANTIZER = "CortexMQuantizer"


def refusals(program: ExportedProgram, reasons: Reasons) -> dict[str, Reason]:
    """The quantized nodes of `program` that must not be replaced, each with its reason.

    The passes fold the dequantize and quantize nodes around every quantized node by itself. Operators that pass floats
    to each other, such as a convolution and its activation, are therefore refused together.

    Args:
        program: Edge program, or what a delegate leaves of it.
        reasons: Checks the arguments of nodes that another quantizer quantized.
    """
    constants = constant_names(program)
    found: dict[str, Reason] = {}
    for node in program.graph.nodes:
        if not is_annotated(node) or node.name in found:
            continue
        if refusal := _refusal(node, constants, reasons):
            culprit, reason = refusal
            for member in unit_of(node):
                neighbour = Reason(
                    code=ReasonCode.NEIGHBOUR, message=f"passes floats to or from {culprit.name}", node=culprit.name
                )
                found[member.name] = reason if member is culprit else neighbour
    return found


def not_on_integers(replaced: Graph, graph: Graph) -> list[str]:
    """Names of the nodes of `graph` that would compute on integers in `replaced` as if these were floats."""
    before = {node.name: node for node in graph.nodes}
    return [
        origin
        for node in replaced.nodes
        if (origin := node.meta.get(ORIGIN)) in before and is_annotated(node) and is_compute(node)
        if not is_replaced(node) and _has_integers(node)
        if _short(node) not in _ON_INTEGERS
        or _keeps_float_bounds(node, before[origin])
        or not stored_alike(before[origin])
    ]


def _keeps_float_bounds(node: Node, before: Node) -> bool:
    """Whether `node` is a clamp that the passes did not give bounds in integers, as behind a tanh."""
    return _short(node) == _short(before) == "clamp" and node.args[1:] == before.args[1:]


def left_in_float(node: Node) -> Reason:
    """The reason of a quantized node that has no kernel for integers."""
    if _short(node) in _ON_INTEGERS and not stored_alike(node):
        return other_scales(node, "portable kernels would compute it on stored integers")
    message = f"neither CMSIS-NN nor portable kernels compute {_short(node)} on integers as it is here"
    return Reason(code=ReasonCode.NO_CONVERTER, message=message, check="AtenToCortexMPass")


def _has_integers(node: Node) -> bool:
    values = (other.meta.get("val") for other in (node, *node.all_input_nodes))
    return any(isinstance(value, torch.Tensor) and value.dtype in (torch.int8, torch.int16) for value in values)


def _short(node: Node) -> str:
    """E.g. `convolution`."""
    return operator_name(node).split(".")[1] if "." in operator_name(node) else operator_name(node)


def _is_decomposed(computing: list[Node]) -> bool:
    """Whether operators that pass floats to each other are more than one with its activation."""
    names = [_short(node) for node in computing]
    return len(names) > 1 and not (len(names) == 2 and names[0] in _FUSING and names[1] in _FUSED)


def unit_of(node: Node) -> list[Node]:
    """`node` and the computing nodes that pass floats to or from it, directly or through others."""
    unit, waiting = dict.fromkeys([node]), [node]
    while waiting:
        current = waiting.pop()
        for other in (*current.all_input_nodes, *current.users):
            if other not in unit and _passes_floats(other):
                unit[other] = None
                waiting.append(other)
    return list(unit)


def _passes_floats(node: Node) -> bool:
    return node.op == "call_function" and not operator_name(node).startswith((*QUANTIZE, *DEQUANTIZE))


def _refusal(node: Node, constants: frozenset[str], reasons: Reasons) -> tuple[Node, Reason] | None:
    """The first node of the unit of `node` that keeps it in float, and why."""
    unit = unit_of(node)
    members = set(unit)
    unit = [member for member in node.graph.nodes if member in members]
    computing = [member for member in unit if is_compute(member) and not operator_name(member).startswith("aten.full")]
    for member in unit:
        if is_excluded(member):
            return member, Reason(code=ReasonCode.EXCLUDED, message="kept in float")  # the plan knows by what
        if is_compute(member) and not is_annotated(member) and not operator_name(member).startswith("aten.full"):
            message = f"{_QUANTIZER} did not quantize it, and it passes floats to or from a quantized operator"
            return member, Reason(code=ReasonCode.NOT_QUANTIZED, message=message, check=_QUANTIZER)
        leaves = [user for user in member.users if not _passes_floats(user)]
        if any(not operator_name(user).startswith(QUANTIZE) for user in leaves):
            return member, Reason(code=ReasonCode.NOT_QUANTIZED, message="its result is not quantized")
        if (computed := _computed_constant(member, constants)) is not None:
            message = f"its weight or bias {computed.name} is computed, and CMSIS-NN's operators need a constant"
            return member, Reason(code=ReasonCode.NOT_CONSTANT, message=message)
        if is_compute(member) and (reason := reasons.of_others_quantization(member)):
            return member, reason
    if _is_decomposed(computing):
        message = f"CMSIS-NN has no such operator here, and it was decomposed into {len(computing)}"
        return computing[0], Reason(code=ReasonCode.NO_CONVERTER, message=message, check=_QUANTIZER)
    return None


def _computed_constant(node: Node, constants: frozenset[str]) -> Node | None:
    """The weight or bias of `node` that is none of `constants`."""
    taken = node.args[1:3] if operator_name(node) in _WITH_WEIGHTS else ()
    return next((each for each in taken if isinstance(each, torch.fx.Node) and not _is_constant(each, constants)), None)


def _is_constant(node: Node, constants: frozenset[str]) -> bool:
    source = node.all_input_nodes[0] if operator_name(node).startswith(DEQUANTIZE) else node
    return source.name in constants


def _has_kernel(node: Node) -> bool:
    """Whether the passes replace operators of this kind, fuse them, or leave them to compute on integers."""
    is_replaceable = node.target in AtenToCortexMPass._DIALECT_SUBSTITUTIONS
    return is_replaceable or _short(node) in (*_ON_INTEGERS, *_FUSED, "hardswish", "full", "full_like")


class Reasons:
    """Reasons for the nodes of one program."""

    def __init__(self, device: Device, refused: Mapping[str, Reason]) -> None:
        self._device, self._refused = device, refused
        explicit = device.use_explicit_layout
        self._patterns: Mapping[tuple[Any, ...], Any] = (
            quantizer_support.CORTEX_M_EXPLICIT_LAYOUT_QUANTIZER_SUPPORT_DICT
            if explicit
            else quantizer_support.CORTEX_M_QUANTIZER_SUPPORT_DICT
        )

    def reason(self, node: Node) -> Reason:
        """Return why portable kernels compute `node`."""
        if node.name in self._refused:
            return self._refused[node.name]
        operator = operator_name(node)
        if not is_compute(node):
            return self._of_conversion(node)
        if is_annotated(node):
            return _of_quantized(node, operator)
        return self._of_float(node, operator)

    def of_others_quantization(self, node: Node) -> Reason | None:
        """Return why CMSIS-NN does not compute `node` as another quantizer quantized it."""
        if is_checked(node):
            return other_sizes(node)
        if not _has_kernel(node):
            return left_in_float(node)
        operator = operator_name(node)
        names = [name for name in (operator, *_sources(node)) if self._checks(name)]
        refusal = self._of_arguments(node, operator if operator in names else names[-1]) if names else None
        return refusal or other_sizes(node) or disagreement(node, explicit_layout=self._device.use_explicit_layout)

    def _of_conversion(self, node: Node) -> Reason:
        """Of a quantize, dequantize or getitem node, which follows the operator that it belongs to."""
        is_operand = operator_name(node).startswith(DEQUANTIZE)
        others = list(node.users) if is_operand else node.all_input_nodes[:1]
        owner = next((other for other in others if is_compute(other)), None)
        if owner is None:
            return Reason(code=ReasonCode.BOUNDARY, message="converts numbers that CMSIS-NN does not compute")
        message = f"belongs to {owner.name}, which portable kernels compute"
        return Reason(code=ReasonCode.NEIGHBOUR, message=message, node=owner.name)

    def _of_float(self, node: Node, operator: str) -> Reason:
        """Of a node that the quantizer left in float."""
        names = [name for name in (operator, *_sources(node)) if self._checks(name)]
        if not names:
            message = f"{_QUANTIZER} has no pattern for it"
            return Reason(code=ReasonCode.NO_CONVERTER, message=message, check=_QUANTIZER)
        name = operator if operator in names else names[-1]
        if refusal := self._of_arguments(node, name):
            return refusal
        message = (
            "CMSIS-NN has it, but it is not quantized: the configuration keeps it in float, no operator around it is "
            "quantized, or its memory format in the model is another one"
        )
        return Reason(code=ReasonCode.NOT_QUANTIZED, message=message, check=_QUANTIZER)

    def _of_arguments(self, node: Node, name: str) -> Reason | None:
        """Of a node that a check of the quantizer refuses."""
        value = node.meta["val"][0] if isinstance(node.meta.get("val"), (tuple, list)) else node.meta.get("val")
        shape = list(value.shape) if isinstance(value, torch.Tensor) else []
        check = self._checks(name)[0]
        if name in _CONVOLUTIONS:
            in_format = self._device.use_explicit_layout or is_channels_last(value)
            if not in_format:
                message = f"its result {shape} is not channels-last in memory"
                return Reason(
                    code=ReasonCode.CONSTRAINT, message=message, check=check.__name__, values={"shape": shape}
                )
            return _of_transposed_convolution(node, check.__name__)
        if operator_name(node) != name or check.check_pattern([node]):
            return None
        shapes = [list(each.meta["val"].shape) for each in node.all_input_nodes]
        return Reason(
            code=ReasonCode.CONSTRAINT,
            message=f"CMSIS-NN does not have it for inputs {', '.join(map(str, shapes))} with these arguments",
            check=check.__name__,
            values={"shapes": shapes, "arguments": [arg for arg in node.args if isinstance(arg, (int, float, bool))]},
        )

    def _checks(self, name: str) -> list[Any]:
        """The quantizer's checks of patterns that begin with the operator `name`."""
        return [check for pattern, check in self._patterns.items() if str(pattern[0]) == name]


def _of_quantized(node: Node, operator: str) -> Reason:
    """Of a node that computes on integers, by a portable kernel."""
    if skips_quantized_max_pool2d(node):
        values = {"dilation": list(node.args[4:5]), "ceil_mode": list(node.args[5:6])}
        message = "CMSIS-NN pools without dilation and without ceil_mode"
        return Reason(code=ReasonCode.CONSTRAINT, message=message, check="CortexMMaxPool2DCheck", values=values)
    runs = "a portable kernel computes it on the same integers"
    if operator == "aten.view_copy.default":
        runs = "its result shares its operand's memory, so that no kernel runs"
    message = f"CMSIS-NN has no {operator.split('.')[1]}; {runs}"
    return Reason(code=ReasonCode.NO_CONVERTER, message=message, check="AtenToCortexMPass")


def _of_transposed_convolution(node: Node, check: str) -> Reason | None:
    if operator_name(node) != "aten.convolution.default":
        return None  # computes something else that a convolution was decomposed into
    *_, dilation, transposed, output_padding, groups = node.args
    if not transposed:
        return None
    allowed = {"groups": (groups, 1), "output_padding": (output_padding, 0), "dilation": (dilation, 1)}
    wrong = {
        name: given
        for name, (given, wanted) in allowed.items()
        if any(value != wanted for value in (given if isinstance(given, (list, tuple)) else (given,)))
    }
    if not wrong:
        return None
    message = f"CMSIS-NN transposes convolutions only with groups=1, output_padding=0 and dilation=1: {wrong}"
    return Reason(code=ReasonCode.CONSTRAINT, message=message, check=check, values=wrong)


def _sources(node: Node) -> Iterator[str]:
    """Operators that `node` was decomposed from, the last one the earliest."""
    for source in node.meta.get("from_node") or ():
        while source is not None:
            if not isinstance(source.target, str):
                yield str(source.target)
            else:
                yield source.target
            source = source.from_node[0] if source.from_node else None
