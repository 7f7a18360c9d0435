"""NXP's quantizer, changed where it gives tensors ranges that do not hold their values.

Import this after `sdk.provide_sdk`: importing ExecuTorch's backend requires the SDK.
"""

from __future__ import annotations

import itertools
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import torch
from executorch.backends.nxp.quantizer.neutron_quantizer import NeutronQuantizer
from torchao.quantization.pt2e.quantizer.quantizer import Q_ANNOTATION_KEY

from lowerdeck.backends.neutron.ranges import correct_ranges
from lowerdeck.compat import nxp
from lowerdeck.quantization.matrix_products import use_bmm

if TYPE_CHECKING:
    from torch.fx import Graph, GraphModule, Node

_aten = torch.ops.aten
_POOLING = (_aten.avg_pool1d.default, _aten.avg_pool2d.default)
_SPLITS = (
    *(_aten.split.Tensor, _aten.split_with_sizes.default),
    *(_aten.chunk.default, _aten.tensor_split.sections),
)
_TABLES = (_aten.sigmoid.default, _aten.sigmoid_.default, _aten.tanh.default, _aten.tanh_.default)


class SeparatingQuantizer(NeutronQuantizer):  # type: ignore[misc]  # ExecuTorch is untyped
    """NeutronQuantizer that gives every tensor a range that holds its values.

    - Only ReLU and its relatives are part of the layer before them. NXP's quantizer also leaves the result of a
      convolution or linear layer unquantized in front of a sigmoid or tanh. The backend then gives it the quantization
      of the activation's result, 0 ... 1 or -1 ... 1, and clips it: up to 128 steps of error. A ReLU may share the
      quantization of its result, because clipping is what it does.
    - Ranges of multiplications and of whatever shares a range: see `ranges`.
    """

    def transform_for_annotation(self, model: GraphModule) -> GraphModule:
        """Run NXP's transformation, which moves fused activations in front of concatenations.

        Before it, `@` becomes `torch.bmm`, which is the only matrix product that NXP's quantizer has, and average
        pooling gets the stride that its converter reads. Splits become
        slices: NXP's pass takes the parts that are read for all parts, in order.
        """
        use_bmm(model.graph)
        _state_strides(model.graph)
        _slice_in_place_of_splits(model.graph)
        model.recompile()
        with _tables_apart():
            transformed: GraphModule = super().transform_for_annotation(model)
        return transformed

    def annotate(self, model: GraphModule) -> GraphModule:
        """Annotate `model`; with a fallback, it is annotated twice (quantization/fallback.py)."""
        for node in model.graph.nodes:
            if (annotation := node.meta.get(Q_ANNOTATION_KEY)) is not None:
                # NXP's pattern of a concatenation with fused activations deletes this attribute, which then has its
                # default. It must be there to be deleted again.
                annotation.output_qspec = annotation.output_qspec
        with _tables_apart():
            annotated: GraphModule = super().annotate(model)
        correct_ranges(annotated.graph, is_qat=self.is_qat)
        return annotated


def _state_strides(graph: Graph) -> None:
    """Give average pooling without a stride that of its windows, which PyTorch takes."""
    for node in graph.nodes:
        if node.target in _POOLING and (len(node.args) == 2 or not node.args[2]):
            node.args = (*node.args[:2], node.args[1], *node.args[3:])


def _slice_in_place_of_splits(graph: Graph) -> None:
    """Write the parts of splits as slices, which NXP's converter has."""
    for node in [node for node in graph.nodes if node.target in _SPLITS]:
        source, dimension = node.args[0], node.args[2] if len(node.args) > 2 else 0
        ends = list(itertools.accumulate(part.shape[dimension] for part in node.meta["val"]))
        for user in list(node.users):
            part = user.args[1] % len(ends)
            bounds = (0, *ends)[part : part + 2]
            with graph.inserting_before(user):
                made = graph.call_function(_aten.slice.Tensor, (source, dimension, *bounds))
            # As NXP's pass does it, so that the slice is a unit of its own to the quantizer.
            made.meta = {**user.meta, "source_fn_stack": [(made.name, made.target)]}
            user.replace_all_uses_with(made)
            graph.erase_node(user)
        graph.erase_node(node)


def _tables_apart() -> AbstractContextManager[None]:
    is_fused = nxp.IS_FUSED_ACTIVATION.original()

    def is_fused_exactly(node: Node) -> bool:
        return bool(is_fused(node)) and node.target not in _TABLES

    return nxp.IS_FUSED_ACTIVATION.active(is_fused_exactly)
