"""Arm's quantizer, changed to skip annotated nodes, as the quantizers of other backends do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from executorch.backends.arm.quantizer import EthosUQuantizer
from executorch.backends.cortex_m.quantizer.pattern_matcher import PatternMatcher
from torchao.quantization.pt2e.quantizer.quantizer import Q_ANNOTATION_KEY

if TYPE_CHECKING:
    from torch.fx import GraphModule

_MATCHED = PatternMatcher.Q_PATTERN_MATCHED_KEY


class YieldingQuantizer(EthosUQuantizer):  # type: ignore[misc]  # ExecuTorch is untyped
    """EthosUQuantizer whose pattern matcher skips nodes that have an annotation.

    Arm's matcher only skips nodes that it has marked itself, and would overwrite any other annotation.
    """

    def transform_for_annotation(self, model: GraphModule) -> GraphModule:
        """Run Arm's transformation, which annotates once to find the nodes to quantize."""
        with annotated_count_as_matched(model):
            transformed: GraphModule = super().transform_for_annotation(model)
        return transformed

    def annotate(self, model: GraphModule) -> GraphModule:
        """Annotate the nodes without an annotation."""
        with annotated_count_as_matched(model):
            annotated: GraphModule = super().annotate(model)
        return annotated


@contextmanager
def annotated_count_as_matched(model: GraphModule) -> Iterator[None]:
    """Make Arm's pattern matcher skip the annotated nodes of `model` while the context is open."""
    marked = [node for node in model.graph.nodes if Q_ANNOTATION_KEY in node.meta and _MATCHED not in node.meta]
    for node in marked:
        node.meta[_MATCHED] = True
    try:
        yield
    finally:
        for node in marked:
            node.meta.pop(_MATCHED, None)
