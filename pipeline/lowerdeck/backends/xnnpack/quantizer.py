"""XNNPACKQuantizer, which traces patterns with batch norm only for training, and leaves integers alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import XNNPACKQuantizer
from executorch.backends.xnnpack.quantizer.xnnpack_quantizer_utils import propagate_annotation
from torchao.quantization.pt2e.quantizer import QuantizationAnnotation, SharedQuantizationSpec
from torchao.quantization.pt2e.quantizer.quantizer import Q_ANNOTATION_KEY

from lowerdeck.compat.xnnpack import ANNOTATORS
from lowerdeck.quantization.fallback import activation_spec, unshare_with_float

if TYPE_CHECKING:
    from torch.fx import GraphModule, Node

_aten = torch.ops.aten
_LAYERS = (
    *(_aten.linear.default, _aten.conv1d.default, _aten.conv2d.default, _aten.conv1d.padding, _aten.conv2d.padding),
    *(_aten.conv_transpose1d.default, _aten.conv_transpose2d.input),
)


class SparingQuantizer(XNNPACKQuantizer):  # type: ignore[misc]  # ExecuTorch is untyped
    """XNNPACKQuantizer after prepare_pt2e, which folds every batch norm behind a convolution into it.

    ExecuTorch exports twelve small modules to match what is not there then: several seconds in every process.
    """

    def transform_for_annotation(self, model: GraphModule) -> GraphModule:
        """Make tensors of the scalars of float sums and products, as XNNPACKQuantizer does for all of them.

        It makes float tensors, also in integer arithmetic, whose results then no longer index anything.
        """
        integers = {node: node.args for node in model.graph.nodes if _is_integer(node)}
        transformed: GraphModule = super().transform_for_annotation(model)
        for node, arguments in integers.items():
            node.args = arguments
        transformed.graph.eliminate_dead_code()  # of the tensors that nothing uses
        transformed.recompile()
        return transformed

    def annotate(self, model: GraphModule) -> GraphModule:
        """Annotate the model as XNNPACKQuantizer does."""
        annotators = ANNOTATORS.original()
        # Tracing the patterns draws random numbers: without it, the training that follows would draw others.
        if not self.global_config.is_qat:
            annotators = _without_batch_norm(annotators)
        with ANNOTATORS.active(annotators):
            annotated: GraphModule = super().annotate(model)
        for node in annotated.graph.nodes:
            if _has_computed_weight(node):
                # Its scales would be computed, too, in float32, where ExecuTorch's kernel ends the process.
                node.meta.pop(Q_ANNOTATION_KEY, None)
            if _pads_with_zeros(node) and _output_is_quantized(node.args[0]) and Q_ANNOTATION_KEY not in node.meta:
                # XNNPACK pads integers only into integers, and every range that is observed includes 0.
                shared = SharedQuantizationSpec(node.args[0])
                node.meta[Q_ANNOTATION_KEY] = QuantizationAnnotation(
                    input_qspec_map={node.args[0]: shared}, output_qspec=shared, _annotated=True
                )
                propagate_annotation(annotated)  # to what shares the quantization of this result
        for node in [node for node in annotated.graph.nodes if Q_ANNOTATION_KEY in node.meta]:
            unshare_with_float(node, activation_spec(node))  # a layer with computed weights, which is float now
        return annotated


def _has_computed_weight(node: Node) -> bool:
    weight = node.args[1] if node.target in _LAYERS else None
    return isinstance(weight, torch.fx.Node) and weight.op != "get_attr"


def _pads_with_zeros(node: Node) -> bool:
    return (
        node.target == _aten.pad.default
        and node.args[2:3] in ((), ("constant",))
        and not any(node.args[3:])  # the number, if it is given
    )


def _output_is_quantized(node: Any) -> bool:
    annotation = node.meta.get(Q_ANNOTATION_KEY)
    return annotation is not None and annotation.output_qspec is not None


def _is_integer(node: Node) -> bool:
    value = node.meta.get("val")
    return node.op == "call_function" and isinstance(value, torch.Tensor) and not value.is_floating_point()


def _without_batch_norm(annotators: Mapping[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    def annotate_none(model: GraphModule, *_: Any) -> list[Any]:
        model.graph.eliminate_dead_code()  # as the annotators do before they match
        model.recompile()
        return []

    return {name: annotate_none if "_bn" in name else annotate for name, annotate in annotators.items()}
