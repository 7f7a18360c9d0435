"""CortexMQuantizer, changed to skip annotated nodes, as others do, and where ranges do not hold their values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from executorch.backends.cortex_m.passes.cortex_m_pass_manager import CortexMPassManager, MatmulToBmmPass
from executorch.backends.cortex_m.quantizer.quantization_configs import INT8_ACTIVATION_PER_TENSOR_QSPEC
from executorch.backends.cortex_m.quantizer.quantizer import CortexMQuantizer
from torchao.quantization.pt2e.quantizer.quantizer import Q_ANNOTATION_KEY

from lowerdeck.backends.ethos_u.quantizer import annotated_count_as_matched, ranges_of_floats_alone
from lowerdeck.quantization.fixed_ranges import observe_what_is_shared
from lowerdeck.quantization.matrix_products import use_bmm

if TYPE_CHECKING:
    from torch.fx import GraphModule, Node

_CHECKED = "lowerdeck_cortex_m"
"""Key of `node.meta["custom"]`, which every later form of the program keeps."""


class YieldingCortexMQuantizer(CortexMQuantizer):  # type: ignore[misc]  # ExecuTorch is untyped
    """CortexMQuantizer whose pattern matcher, the same as that of Arm's other quantizers, skips annotated nodes."""

    def transform_for_annotation(self, model: GraphModule) -> GraphModule:
        """Run the passes of CortexMQuantizer, of which MatmulToBmmPass fails where an operand is a constant."""
        use_bmm(model.graph)
        model.recompile()
        for pass_type in CortexMPassManager.pass_list_transform_for_annotation:
            if pass_type is not MatmulToBmmPass:
                model = pass_type().call(model).graph_module
        return model

    def annotate(self, model: GraphModule) -> GraphModule:
        """Annotate the nodes without an annotation.

        What shares a range with the result of a softmax, which CMSIS-NN has in 0 ... 0.996, shares an observed one.
        """
        before = {node for node in model.graph.nodes if Q_ANNOTATION_KEY in node.meta}
        with annotated_count_as_matched(model), ranges_of_floats_alone():
            annotated: GraphModule = super().annotate(model)
        new = [node for node in annotated.graph.nodes if Q_ANNOTATION_KEY in node.meta and node not in before]
        observe_what_is_shared(new, INT8_ACTIVATION_PER_TENSOR_QSPEC)
        for node in new:
            if node.op == "call_function":
                node.meta["custom"] = {**node.meta.get("custom", {}), _CHECKED: True}
        return annotated


def is_checked(node: Node) -> bool:
    """Whether CortexMQuantizer chose the quantization of `node`, so that its checks accepted it."""
    return bool(node.meta.get("custom", {}).get(_CHECKED, False))
