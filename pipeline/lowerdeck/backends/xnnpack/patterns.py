"""Spares XNNPACK's passes the patterns that a program cannot contain.

Two of them export and decompose small modules, to look for what comes of them: an attention and an interpolation. That
takes three seconds in every process, whether the program has anything of the kind or not.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from executorch.backends.xnnpack.partition.graphs import bilinear_2d, sdpa

from lowerdeck.graph.nodes import operator_name

if TYPE_CHECKING:
    from torch.export import ExportedProgram

ATTENTION = "aten._softmax.default"
"""Stands in every pattern of sdpa.get_graphs."""
INTERPOLATION = ("aten.index.Tensor", "aten.upsample_bilinear2d.vec")
"""One of them stands in every pattern of bilinear_2d.get_graphs_dict."""


@contextmanager
def possible_patterns(program: ExportedProgram) -> Iterator[None]:
    """While open, the passes look for those patterns in `program` alone of which it has the operators."""
    operators = {operator_name(node) for node in program.graph.nodes if node.op == "call_function"}
    attentions, interpolations = sdpa.get_graphs, bilinear_2d.get_graphs_dict
    sdpa.get_graphs = attentions if ATTENTION in operators else list
    bilinear_2d.get_graphs_dict = interpolations if operators.intersection(INTERPOLATION) else dict
    try:
        yield
    finally:
        sdpa.get_graphs, bilinear_2d.get_graphs_dict = attentions, interpolations
