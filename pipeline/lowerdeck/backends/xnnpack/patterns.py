"""Skips patterns of XNNPACK's passes that a program cannot contain.

Two passes export and decompose small modules, an attention and an interpolation, to match the result. That takes three
seconds in every process, even if the program contains neither.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from lowerdeck.compat import xnnpack
from lowerdeck.graph.nodes import operator_name

if TYPE_CHECKING:
    from torch.export import ExportedProgram

ATTENTION = "aten._softmax.default"
"""Part of every pattern of sdpa.get_graphs."""
INTERPOLATION = ("aten.index.Tensor", "aten.upsample_bilinear2d.vec")
"""One of them is part of every pattern of bilinear_2d.get_graphs_dict."""


@contextmanager
def possible_patterns(program: ExportedProgram) -> Iterator[None]:
    """Let the passes match only patterns whose operators `program` contains."""
    operators = {operator_name(node) for node in program.graph.nodes if node.op == "call_function"}
    with ExitStack() as stack:
        if ATTENTION not in operators:
            stack.enter_context(xnnpack.ATTENTION_PATTERNS.active(list))
        if not operators.intersection(INTERPOLATION):
            stack.enter_context(xnnpack.INTERPOLATION_PATTERNS.active(dict))
        yield
