"""NXP's quantizer, changed where it gives tensors ranges that do not hold their values.

Import this after `sdk.provide_sdk`: importing ExecuTorch's backend requires the SDK.
"""

from __future__ import annotations

import itertools
import operator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
from executorch.backends.nxp.quantizer.neutron_quantizer import NeutronQuantizer
from torchao.quantization.pt2e.quantizer.quantizer import Q_ANNOTATION_KEY

from lowerdeck.backends.neutron.ranges import correct_ranges, leave_coarse_sums
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
_WITH_NUMBERS = (_aten.add.Tensor, _aten.sub.Tensor, _aten.mul.Tensor, _aten.div.Tensor)
_TABLES = (_aten.sigmoid.default, _aten.sigmoid_.default, _aten.tanh.default, _aten.tanh_.default)


class SeparatingQuantizer(NeutronQuantizer):  # type: ignore[misc]  # ExecuTorch is untyped
    """NeutronQuantizer that gives every tensor a range that holds its values.

    - Only ReLU and its relatives are part of the layer before them. NXP's quantizer also leaves the result of a
      convolution or linear layer unquantized in front of a sigmoid or tanh. The backend then gives it the quantization
      of the activation's result, 0 ... 1 or -1 ... 1, and clips it: up to 128 steps of error. A ReLU may share the
      quantization of its result, because clipping is what it does.
    - Ranges of multiplications, of sums and of whatever shares a range: see `ranges`.
    """

    def transform_for_annotation(self, model: GraphModule) -> GraphModule:
        """Run NXP's transformation, which moves fused activations in front of concatenations.

        Before it, `@` becomes `torch.bmm`, which is the only matrix product that NXP's quantizer has, and average
        pooling gets the stride that its converter reads. Splits become
        slices: NXP's pass takes the parts that are read for all parts, in order. What is added to a linear layer
        becomes what NXP's pass that makes its bias of it can read, and integers are converted by operators of their
        own.
        """
        use_bmm(model.graph)
        _state_strides(model.graph)
        _slice_in_place_of_splits(model.graph)
        _state_biases(model)
        _state_conversions(model.graph)
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
        leave_coarse_sums(annotated.graph)
        correct_ranges(annotated.graph, is_qat=self.is_qat)
        return annotated


def _state_strides(graph: Graph) -> None:
    """Give average pooling without a stride that of its windows, which PyTorch takes."""
    for node in graph.nodes:
        if node.target in _POOLING and (len(node.args) == 2 or not node.args[2]):
            node.args = (*node.args[:2], node.args[1], *node.args[3:])


def _state_biases(model: GraphModule) -> None:
    """Give linear layers plain parameters to add, which NXP's pass merges into their biases.

    It fails on numbers, and multiplies a constant by `alpha` in place, which others may read, too.
    """
    for node in [node for node in model.graph.nodes if node.target is _aten.add.Tensor]:
        (layer, other), alpha = node.args, node.kwargs.get("alpha", 1)
        if not isinstance(layer, torch.fx.Node) or layer.target is not _aten.linear.default:
            continue
        value, size = _constant(model, other), layer.meta["val"].shape[-1]
        if value is None or value.shape not in ((), (size,)) or (isinstance(other, torch.fx.Node) and value.ndim == 0):
            continue
        name = f"{node.name}_bias"
        model.register_parameter(
            name, torch.nn.Parameter(value.detach() * alpha + torch.zeros(size), requires_grad=False)
        )
        with model.graph.inserting_before(layer):
            bias = model.graph.get_attr(name)
        bias.meta["val"] = layer.meta["val"].new_empty(size)
        node.args, node.kwargs = (layer, bias), {}


def _state_conversions(graph: Graph) -> None:
    """Convert integers that meet a fraction: NXP's pass gives the number the type of the tensor, and 0.5 becomes 0."""
    for node in [node for node in graph.nodes if node.target in _WITH_NUMBERS]:
        (operand, *others), value = node.all_input_nodes, node.meta["val"]
        if others or operand.meta["val"].is_floating_point() or not value.is_floating_point():
            continue
        with graph.inserting_before(node):
            converted = graph.call_function(_aten.to.dtype, (operand, value.dtype))
        converted.meta = {**node.meta, "val": operand.meta["val"].to(value.dtype)}
        node.replace_input_with(operand, converted)


def _constant(model: GraphModule, value: Any) -> torch.Tensor | None:
    """A number, or a parameter or buffer of `model`, as a tensor; None where it is computed."""
    if isinstance(value, (int, float)):
        return torch.tensor(float(value))
    is_stored = isinstance(value, torch.fx.Node) and value.op == "get_attr"
    stored = operator.attrgetter(str(value.target))(model) if is_stored else None
    return stored if isinstance(stored, torch.Tensor) else None


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
