"""Ranges that a quantizer fixes, such as 0 ... 0.996 for the result of a softmax, and what takes them over.

A fixed range holds what its operator computes. Quantizers also hand it on to whatever shares a range with that result,
and nothing observes whether it holds the other values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torchao.quantization.pt2e.quantizer import (
    FixedQParamsQuantizationSpec,
    QuantizationAnnotation,
    QuantizationSpec,
    SharedQuantizationSpec,
)
from torchao.quantization.pt2e.quantizer.quantizer import Q_ANNOTATION_KEY

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch.fx import Node

_aten = torch.ops.aten
_WITHIN = frozenset(
    (
        _aten.abs.default, _aten.adaptive_avg_pool2d.default, _aten.amax.default, _aten.amin.default,
        _aten.avg_pool1d.default, _aten.avg_pool2d.default, _aten.cat.default, _aten.clone.default,
        _aten.contiguous.default, _aten.dropout.default, _aten.expand.default, _aten.flatten.using_ints,
        _aten.max_pool1d.default, _aten.max_pool2d.default, _aten.maximum.default, _aten.mean.dim,
        _aten.minimum.default, _aten.permute.default, _aten.repeat.default, _aten.reshape.default,
        _aten.select.int, _aten.slice.Tensor, _aten.squeeze.default, _aten.squeeze.dim, _aten.squeeze.dims,
        _aten.stack.default, _aten.t.default, _aten.transpose.int, _aten.unflatten.int, _aten.unsqueeze.default,
        _aten.upsample_bilinear2d.vec, _aten.upsample_nearest2d.vec, _aten.view.default, _aten.where.self,
    )
)  # fmt: skip
"""Operators whose result lies in the range of their inputs, if these ranges contain zero (paddings of poolings)."""


def takes_over_fixed_range(annotation: QuantizationAnnotation) -> bool:
    """Whether the result, or what a comparison reads, shares a fixed range that another operator has for its own."""
    shared, read = annotation.output_qspec, annotation.input_qspec_map
    if not read:
        return False
    if shared is None:
        are_own = (_root_of_result(source) == _root(spec) for source, spec in read.items())
        return all(_is_fixed(spec) for spec in read.values()) and not all(are_own)
    return isinstance(shared, SharedQuantizationSpec) and _is_fixed(shared)


def observe_what_is_shared(nodes: Iterable[Node], observed: QuantizationSpec) -> None:
    """Give every annotated node of `nodes` that takes over a fixed range one that holds its values.

    Args:
        nodes: In the order of the graph.
        observed: How activations are quantized by ranges that calibration observes.
    """
    for node in nodes:
        annotation = node.meta.get(Q_ANNOTATION_KEY)
        if node.op == "call_function" and annotation is not None and takes_over_fixed_range(annotation):
            share_what_holds(node, observed)


def share_what_holds(node: Node, observed: QuantizationSpec) -> None:
    """Make `node`, which shares a fixed range, share it with all of its inputs, or one that is observed.

    Args:
        node: Annotated, with at least one quantized input.
        observed: How activations are quantized by ranges that calibration observes.
    """
    annotation = node.meta[Q_ANNOTATION_KEY]
    fixed = None if annotation.output_qspec is None else _root(annotation.output_qspec)
    sources = list(annotation.input_qspec_map)
    has_divisor = node.target is _aten.avg_pool2d.default and any(node.args[6:])
    if node.target in _WITHIN and not has_divisor and all(_root_of_result(source) == fixed for source in sources):
        # A quantizer may observe the input on its way here, and so quantize it again.
        for source in sources:
            if _root(annotation.input_qspec_map[source]) != fixed:
                annotation.input_qspec_map[source] = annotation.output_qspec
        return
    first, *others = sources
    shared = SharedQuantizationSpec((first, node))
    annotation.input_qspec_map.update({first: observed, **dict.fromkeys(others, shared)})
    if annotation.output_qspec is not None:
        annotation.output_qspec = shared


def _is_fixed(spec: Any) -> bool:
    return isinstance(_root(spec), FixedQParamsQuantizationSpec)


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
