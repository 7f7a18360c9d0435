"""What one scale cannot express stays in float: masks beside scores that count, and tensors of unlike quantities.

So does control flow (control_flow.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchao.quantization.pt2e.quantizer import Quantizer

from lowerdeck.graph.joined_outputs import mark_replacements, mark_unlike_joins, marked_unlike
from lowerdeck.graph.mask_numbers import masked_values
from lowerdeck.graph.unlike_inputs import mark_unlike_inputs
from lowerdeck.quantization.annotation import hidden, repair_float_neighbours, show
from lowerdeck.quantization.control_flow import control_flow

if TYPE_CHECKING:
    from torch.fx import GraphModule


class KeepingMasks(Quantizer):  # type: ignore[misc]  # torchao is untyped
    """A quantizer that leaves control flow, masks and what reads their numbers, and unlike quantities in float."""

    def __init__(self, quantizer: Quantizer) -> None:
        """`quantizer` annotates the rest; it skips annotated nodes."""
        super().__init__()
        self._quantizer = quantizer
        self._is_in_body = False

    def transform_for_annotation(self, model: GraphModule) -> GraphModule:
        """Run the quantizer's transformation on the rest; not on the body of a scan, with which it is called again."""
        if self._is_in_body:
            return model
        mark_unlike_joins(model)
        unlike = mark_unlike_inputs(model)
        names, nodes = {node.name for node in model.graph.nodes}, [*control_flow(model), *masked_values(model), *unlike]
        readers = {node.name: {user.name for user in node.users} for node in unlike}
        with hidden(nodes):
            transformed: GraphModule = self._quantizer.transform_for_annotation(model)
        show(transformed.graph.nodes)
        mark_replacements(transformed.graph, names, readers)
        return transformed

    def annotate(self, model: GraphModule) -> GraphModule:
        """Annotate the rest."""
        if self._is_in_body:
            return model
        self._is_in_body = True
        nodes = [*control_flow(model), *masked_values(model), *marked_unlike(model.graph)]
        with hidden(nodes):
            annotated: GraphModule = self._quantizer.annotate(model)
        repair_float_neighbours(annotated.graph, nodes)
        return annotated

    def validate(self, model: GraphModule) -> None:
        """Run the quantizer's check."""
        self._quantizer.validate(model)

    def prepare_obs_or_fq_callback(self, model: GraphModule, edge_or_node_to_obs_or_fq: dict[Any, Any]) -> None:
        """Run the quantizer's final changes to observers."""
        self._quantizer.prepare_obs_or_fq_callback(model, edge_or_node_to_obs_or_fq)
