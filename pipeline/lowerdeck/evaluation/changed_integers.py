"""Whether quantization changes integers that a model computes of integers alone, such as the rows of a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.graph.exact_integers import computed_of_integers, is_integer
from lowerdeck.graph.io_boundary import output_nodes
from lowerdeck.graph.modules import module_path
from lowerdeck.graph.node_origins import float_node
from lowerdeck.graph.node_values import NodeValues
from lowerdeck.graph.source_lines import source_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.export import ExportedProgram
    from torch.fx import Node

_aten = torch.ops.aten
_INDEXING = (
    *(_aten.embedding.default, _aten.gather.default, _aten.index.Tensor, _aten.index_select.default),
    *(_aten.one_hot.default, _aten.scatter.src, _aten.scatter.value, _aten.scatter_add.default),
)
"""Operators that choose by integers. Of others, backends may make several with the same name and other operands."""


def check_integers(
    exported: ExportedProgram, quantized: ExportedProgram, samples: Sequence[tuple[torch.Tensor, ...]]
) -> None:
    """Compare the integers that are outputs, casts of floats or choose rows, where both programs have the operators.

    Args:
        exported: The float ATen program.
        quantized: The quantized ATen program.
        samples: Inputs of the model.

    Raises:
        LowerdeckError: one differs; the message names where the model computes it.
    """
    pairs = _pairs(exported, quantized)
    if not pairs:
        return
    names = [{node.name for node in side} for side in zip(*pairs, strict=True)]
    expected, actual = (NodeValues(*each) for each in zip((exported, quantized), names, strict=True))
    for sample in samples:
        wanted, given = expected(sample), actual(sample)
        for node, other in pairs:
            right, got = wanted[node.name].flatten(), given[other.name].flatten()
            if len(right) != len(got):
                continue
            differ = (right != got).nonzero()
            if len(differ):
                raise LowerdeckError(
                    f"quantization changes what the model computes of integers alone: {_described(node)} gives "
                    f"{got[differ[0]].item()} in place of {right[differ[0]].item()}. Keep the operators that compute "
                    "it in float (quantization.keep_float), or write them with integers"
                )


def _pairs(exported: ExportedProgram, quantized: ExportedProgram) -> list[tuple[Node, Node]]:
    """The same integers in both programs, where the float one computes them."""
    exact = computed_of_integers(exported)
    originals = {node.name: node for node in exported.graph.nodes}
    found = list(zip(output_nodes(exported), output_nodes(quantized), strict=True))
    for node in quantized.graph.nodes:
        original = originals.get(float_node(node) or "")
        if original is None:
            continue
        if node.target == original.target == _aten.to.dtype:
            found.append((original, node))
        elif node.target in _INDEXING and original.target in _INDEXING:
            found += zip(_integers_taken(original), _integers_taken(node), strict=False)
    return [
        (left, right)
        for left, right in dict.fromkeys(found)
        if isinstance(left, torch.fx.Node)
        and isinstance(right, torch.fx.Node)
        and left.op == "call_function"
        and left.name in exact
        and all(is_integer(each.meta.get("val")) for each in (left, right))
        and _size(left) == _size(right)
    ]


def _size(node: Node) -> int | None:
    """How many integers `node` has; None where inputs say it, whose symbols differ between programs."""
    size = node.meta["val"].numel()
    return size if isinstance(size, int) else None


def _integers_taken(node: Node) -> list[Node]:
    return [each for each in node.all_input_nodes if is_integer(each.meta.get("val"))]


def _described(node: Node) -> str:
    where = ", ".join(filter(None, (str(node.target), module_path(node), source_line(node.meta.get("stack_trace")))))
    return f"{node.name} ({where})"
