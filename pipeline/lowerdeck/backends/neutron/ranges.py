"""Corrects annotations of NXP's quantizer whose ranges clip the values that they are for.

Import this after `sdk.provide_sdk`: importing ExecuTorch's backend requires the SDK.
"""

from __future__ import annotations

import dataclasses
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

from lowerdeck.quantization.fixed_ranges import share_what_holds, takes_over_fixed_range

if TYPE_CHECKING:
    from torch.fx import Graph, Node

_aten = torch.ops.aten


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


def _observe_factors(annotation: QuantizationAnnotation, observed: QuantizationSpec) -> None:
    symmetric = dataclasses.replace(observed, quant_min=-127, qscheme=torch.per_tensor_symmetric)
    for source, spec in annotation.input_qspec_map.items():
        if isinstance(spec, FixedQParamsQuantizationSpec):
            annotation.input_qspec_map[source] = symmetric


def _is_joined_apart(node: Node, annotation: QuantizationAnnotation) -> bool:
    """Whether a concatenation shares no range, because NXP's quantizer came to what makes its inputs later."""
    is_apart = not isinstance(annotation.output_qspec, SharedQuantizationSpec)
    return node.target is _aten.cat.default and is_apart and bool(annotation.input_qspec_map)
