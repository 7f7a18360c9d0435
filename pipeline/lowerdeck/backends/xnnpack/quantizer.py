"""XNNPACKQuantizer, changed to trace its patterns with batch norm only for programs with a batch norm."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import XNNPACKQuantizer

from lowerdeck.compat.xnnpack import ANNOTATORS

if TYPE_CHECKING:
    from torch.fx import GraphModule


class SparingQuantizer(XNNPACKQuantizer):  # type: ignore[misc]  # ExecuTorch is untyped
    """XNNPACKQuantizer for calibration, before which prepare_pt2e folds batch norms into convolutions.

    ExecuTorch exports twelve small modules to match such patterns, which takes several seconds in every process.
    """

    def annotate(self, model: GraphModule) -> GraphModule:
        """Annotate the model as XNNPACKQuantizer does."""
        annotators = ANNOTATORS.original()
        if not any("batch_norm" in str(node.target) for node in model.graph.nodes):
            annotators = _without_batch_norm(annotators)
        with ANNOTATORS.active(annotators):
            annotated: GraphModule = super().annotate(model)
        return annotated


def _without_batch_norm(annotators: Mapping[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    def annotate_none(model: GraphModule, *_: Any) -> list[Any]:
        model.graph.eliminate_dead_code()  # as the annotators do before they match
        model.recompile()
        return []

    return {name: annotate_none if "_bn" in name else annotate for name, annotate in annotators.items()}
