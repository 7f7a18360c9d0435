"""Nodes that another quantizer quantized: which CMSIS-NN may compute, and why not the others."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from executorch.exir.dialects._ops import ops

from lowerdeck.backends.cortex_m.agreement import disagreement, mark_quantized, stored_alike
from lowerdeck.contracts.plan import ReasonCode

_QUANTIZE = ops.edge.quantized_decomposed.quantize_per_tensor.default
_DEQUANTIZE = ops.edge.quantized_decomposed.dequantize_per_tensor.default
_POOL, _GELU = ops.edge.aten.avg_pool2d.default, ops.edge.aten.gelu.default


def quantized(
    operator: Any, before: tuple[Any, ...], after: tuple[Any, ...], memory_format: Any = torch.channels_last
) -> torch.fx.Node:
    """`operator` on an image, between dequantize and quantize nodes with these parameters."""
    graph = torch.fx.Graph()
    image = graph.placeholder("x")
    image.meta["val"] = torch.ones(1, 4, 6, 6).to(memory_format=memory_format)
    dequantized = graph.call_function(_DEQUANTIZE, (image, *before))
    node = graph.call_function(operator, (dequantized, [2, 2]) if operator is _POOL else (dequantized,))
    graph.call_function(_QUANTIZE, (node, *after))
    for each in graph.nodes:
        each.meta.setdefault("val", image.meta["val"])
    mark_quantized(graph)
    return node


INT8 = (0.5, 3, -128, 127, torch.int8)


def code(node: torch.fx.Node) -> ReasonCode | None:
    reason = disagreement(node, explicit_layout=False)
    return None if reason is None else reason.code


@pytest.mark.parametrize(
    ("operator", "after", "expected"),
    [
        (_POOL, INT8, None),
        (_POOL, (0.25, 3, -128, 127, torch.int8), ReasonCode.CONSTRAINT),
        (_POOL, (0.5, 4, -128, 127, torch.int8), ReasonCode.CONSTRAINT),
        (_GELU, (0.25, 0, -128, 127, torch.int8), None),
        (_GELU, (0.25, 0, -127, 127, torch.int8), ReasonCode.DTYPE),
        (_GELU, (0.25, 0, -32768, 32767, torch.int16), ReasonCode.DTYPE),
    ],
)
def test_scales_and_integers_have_to_be_what_cmsis_nn_computes(
    operator: Any, after: tuple[Any, ...], expected: ReasonCode | None
) -> None:
    assert code(quantized(operator, INT8, after)) == expected


def test_pooling_needs_images_that_are_channels_last() -> None:
    assert code(quantized(_POOL, INT8, INT8, torch.contiguous_format)) is ReasonCode.CONSTRAINT


def test_a_node_whose_result_stays_in_float_gets_no_mark() -> None:
    node = quantized(_GELU, INT8, INT8)
    assert stored_alike(node)
    (quantize,) = node.users
    node.meta["custom"] = {}
    node.graph.erase_node(quantize)
    assert mark_quantized(node.graph) == []
