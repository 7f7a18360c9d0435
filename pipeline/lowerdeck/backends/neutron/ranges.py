"""Corrects annotations of NXP's quantizer whose ranges clip the values that they are for.

Import this after `sdk.provide_sdk`: importing ExecuTorch's backend requires the SDK.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import torch
from executorch.backends.nxp.quantizer.neutron_quantizer import act_qspec
from torchao.quantization.pt2e.quantizer import (
    FixedQParamsQuantizationSpec,
    QuantizationAnnotation,
    QuantizationSpec,
    SharedQuantizationSpec,
)
from torchao.quantization.pt2e.quantizer.quantizer import Q_ANNOTATION_KEY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.fx import Graph, Node

_aten = torch.ops.aten
_WITHIN = frozenset(
    (
        _aten.abs.default, _aten.adaptive_avg_pool2d.default, _aten.amax.default, _aten.amin.default,
        _aten.avg_pool1d.default, _aten.avg_pool2d.default, _aten.cat.default, _aten.dropout.default,
        _aten.flatten.using_ints, _aten.max_pool1d.default, _aten.max_pool2d.default, _aten.maximum.default,
        _aten.mean.dim, _aten.minimum.default, _aten.permute.default, _aten.reshape.default, _aten.slice.Tensor,
        _aten.squeeze.default, _aten.squeeze.dim, _aten.squeeze.dims, _aten.transpose.int, _aten.unsqueeze.default,
        _aten.upsample_bilinear2d.vec, _aten.upsample_nearest2d.vec, _aten.view.default,
    )
)  # fmt: skip
"""Operators whose result lies in the range of their inputs, if these ranges contain zero (paddings of poolings)."""


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
        elif annotation.input_qspec_map and (_shares_fixed_range(annotation) or _is_joined_apart(node, annotation)):
            _share_what_holds(node, annotation, observed)


def _observe_factors(annotation: QuantizationAnnotation, observed: QuantizationSpec) -> None:
    symmetric = dataclasses.replace(observed, quant_min=-127, qscheme=torch.per_tensor_symmetric)
    for source, spec in annotation.input_qspec_map.items():
        if isinstance(spec, FixedQParamsQuantizationSpec):
            annotation.input_qspec_map[source] = symmetric


def _share_what_holds(node: Node, annotation: QuantizationAnnotation, observed: QuantizationSpec) -> None:
    """Make `node`, whose result shares a fixed range, share it with all of its inputs, or an observed one."""
    sources: Sequence[Node] = list(annotation.input_qspec_map)
    fixed = _root(annotation.output_qspec)
    has_divisor = node.target is _aten.avg_pool2d.default and any(node.args[6:])
    if node.target in _WITHIN and not has_divisor and all(_root_of_result(source) is fixed for source in sources):
        # NXP's quantizer observes the input on its way here, and so quantizes it again.
        annotation.input_qspec_map.update(dict.fromkeys(sources, annotation.output_qspec))
        return
    first, *others = sources
    shared = SharedQuantizationSpec((first, node))
    annotation.input_qspec_map.update({first: observed, **dict.fromkeys(others, shared)})
    annotation.output_qspec = shared


def _shares_fixed_range(annotation: QuantizationAnnotation) -> bool:
    shared = annotation.output_qspec
    return isinstance(shared, SharedQuantizationSpec) and isinstance(_root(shared), FixedQParamsQuantizationSpec)


def _is_joined_apart(node: Node, annotation: QuantizationAnnotation) -> bool:
    """Whether a concatenation shares no range, because NXP's quantizer came to what makes its inputs later."""
    return node.target is _aten.cat.default and not isinstance(annotation.output_qspec, SharedQuantizationSpec)


def _root_of_result(node: Node) -> Any:
    annotation = node.meta.get(Q_ANNOTATION_KEY)
    return None if annotation is None else _root(annotation.output_qspec)


def _root(spec: Any) -> Any:
    """The specification that `spec` shares, at the end of the chain."""
    while isinstance(spec, SharedQuantizationSpec):
        place = spec.edge_or_node
        source, user = place if isinstance(place, tuple) else (None, place)
        annotation = user.meta.get(Q_ANNOTATION_KEY)
        if annotation is None:
            return None
        spec = annotation.output_qspec if source is None else annotation.input_qspec_map.get(source)
    return spec
