"""Corrects annotations of NXP's quantizer whose ranges clip the values that they are for.

Import this after `sdk.provide_sdk`: importing ExecuTorch's backend requires the SDK.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

import torch
from executorch.backends.nxp.quantizer.neutron_quantizer import act_qspec
from torchao.quantization.pt2e.quantizer import (
    FixedQParamsQuantizationSpec,
    QuantizationAnnotation,
    QuantizationSpec,
    SharedQuantizationSpec,
)
from torchao.quantization.pt2e.quantizer.quantizer import Q_ANNOTATION_KEY

from lowerdeck.quantization.annotation import repair_float_neighbours
from lowerdeck.quantization.fixed_ranges import share_what_holds, takes_over_fixed_range

if TYPE_CHECKING:
    from torch.fx import Graph, Node

_aten = torch.ops.aten
_SUMS = (_aten.sum.default, _aten.sum.dim_IntList)
MOST_SUMMANDS = 128
"""Positive values of which the mean is 2 of the 255 steps of their sum."""


def correct_ranges(graph: Graph, *, is_qat: bool) -> None:
    """Give every annotated tensor of `graph` a range that calibration observes, unless a fixed range holds its values.

    - A multiplication's inputs are fixed to -0.5 ... 0.496, and everything beyond is clipped. Their ranges are observed
      instead; their zero points remain 0. An integer product depends on the scales only through their product over the
      result's scale, which NXP's quantizer leaves free, so no integer arithmetic can need these scales.
    - The result of exp shares the range of its input, of which it then needs a multiple. It gets its own.
    - What shares a range with the result of a sigmoid, tanh or softmax is clipped to 0 ... 1 or -1 ... 1: the other
      inputs of a concatenation or maximum, and the results of neg or sum. It shares a range that is observed.
    - A concatenation of what NXP's quantizer annotates later, such as pooled or reshaped tensors, shares no range, and
      its converter refuses it. It shares one.

    Correcting twice changes nothing.
    """
    observed = act_qspec(is_qat=is_qat)
    for node in graph.nodes:
        annotation = node.meta.get(Q_ANNOTATION_KEY)
        if annotation is None or node.op != "call_function":
            continue
        if node.target is _aten.mul.Tensor:
            _observe_factors(annotation, observed)
        elif node.target is _aten.exp.default and isinstance(annotation.output_qspec, SharedQuantizationSpec):
            annotation.output_qspec = observed
        elif takes_over_fixed_range(annotation) or _is_joined_apart(node, annotation):
            share_what_holds(node, observed)


def leave_coarse_sums(graph: Graph) -> None:
    """Leave sums in float whose range is too coarse for what they add up.

    NXP's converter takes a sum only if its result has the range of its operand, which then is that of the result. What
    else reads the operand gets as many times fewer steps, and of more than MOST_SUMMANDS each is rounded to zero.
    """
    sums = [node for node in graph.nodes if node.target in _SUMS and Q_ANNOTATION_KEY in node.meta]
    coarse = [
        node for node in sums if _summands(node) > MOST_SUMMANDS or (_summands(node) > 1 and _is_read_elsewhere(node))
    ]
    for node in coarse:
        del node.meta[Q_ANNOTATION_KEY]
    repair_float_neighbours(graph, coarse)


def _summands(node: Node) -> float:
    """How many values each element of a sum adds up; infinitely many where only a call knows it."""
    operand, result = node.all_input_nodes[0].meta["val"].numel(), node.meta["val"].numel()
    return operand / max(result, 1) if isinstance(operand, int) and isinstance(result, int) else math.inf


def _is_read_elsewhere(node: Node) -> bool:
    """Whether something else reads the operand of `node`, or a tensor that shares its range."""
    current = node
    while len(inputs := current.all_input_nodes) == 1:
        (current,) = inputs
        if len(current.users) > 1:
            return True
        annotation = current.meta.get(Q_ANNOTATION_KEY)
        if annotation is None or not isinstance(annotation.output_qspec, SharedQuantizationSpec):
            return False
    return False


def _observe_factors(annotation: QuantizationAnnotation, observed: QuantizationSpec) -> None:
    symmetric = dataclasses.replace(observed, quant_min=-127, qscheme=torch.per_tensor_symmetric)
    for source, spec in annotation.input_qspec_map.items():
        if isinstance(spec, FixedQParamsQuantizationSpec):
            annotation.input_qspec_map[source] = symmetric


def _is_joined_apart(node: Node, annotation: QuantizationAnnotation) -> bool:
    """Whether a concatenation shares no range, because NXP's quantizer came to what makes its inputs later."""
    is_apart = not isinstance(annotation.output_qspec, SharedQuantizationSpec)
    return node.target is _aten.cat.default and is_apart and bool(annotation.input_qspec_map)
