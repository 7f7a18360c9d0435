"""Arm's quantizer, changed to skip annotated nodes, as the quantizers of other backends do, and for grouped layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from executorch.backends.arm.quantizer import EthosUQuantizer
from executorch.backends.cortex_m.quantizer.pattern_matcher import PatternMatcher
from torch.utils._pytree import tree_leaves
from torchao.quantization.pt2e.quantizer.quantizer import Q_ANNOTATION_KEY

from lowerdeck.backends.ethos_u.indices import cast_indices_of_scatters, cast_outputs, output_types, values_of_one_type
from lowerdeck.backends.ethos_u.logarithms import log_softmax_by_sum
from lowerdeck.backends.ethos_u.negation import negate_by_product
from lowerdeck.backends.ethos_u.pooling import average_at_once
from lowerdeck.compat.arm import (
    ENQUEUE_SHARED_NODE,
    FIXED_RANGE,
    IS_READ_BY_ONE_LAYER,
    ROUNDED_DIVISION,
    TRANSPOSED_WEIGHT,
)
from lowerdeck.quantization.fixed_ranges import observe_what_is_shared

if TYPE_CHECKING:
    from executorch.backends.arm.quantizer import QuantizationConfig
    from torch.fx import GraphModule, Node
    from torchao.quantization.pt2e.quantizer import QuantizationSpec

_MATCHED = PatternMatcher.Q_PATTERN_MATCHED_KEY


class YieldingQuantizer(EthosUQuantizer):  # type: ignore[misc]  # ExecuTorch is untyped
    """EthosUQuantizer whose pattern matcher skips nodes that have an annotation.

    Arm's matcher only skips nodes that it has marked itself, and would overwrite any other annotation.
    """

    def __init__(self, spec: Any, per_tensor: QuantizationConfig) -> None:
        """`spec` as for EthosUQuantizer; `per_tensor` for weights that cannot have a scale for each channel."""
        super().__init__(spec)
        self._per_tensor = per_tensor

    def transform_for_annotation(self, model: GraphModule) -> GraphModule:
        """Run Arm's transformation, which annotates once to find the nodes to quantize."""
        average_at_once(model)
        negate_by_product(model)
        log_softmax_by_sum(model)
        _keep_limits(model)
        dtypes = output_types(model)
        with (
            annotated_count_as_matched(model),
            self._weights_of_transposed_layers(),
            _images_in_their_range(),
            ranges_of_floats_alone(),
            _integers_divided_as_such(),
            _factors_of_one_call(),
            values_of_one_type(),
        ):
            transformed: GraphModule = super().transform_for_annotation(model)
        cast_indices_of_scatters(transformed)
        cast_outputs(transformed, dtypes)
        return transformed

    def annotate(self, model: GraphModule) -> GraphModule:
        """Annotate the nodes without an annotation.

        What shares a range with converted integers, which have steps of 1, shares an observed one.
        """
        before = {node for node in model.graph.nodes if Q_ANNOTATION_KEY in node.meta}
        with (
            annotated_count_as_matched(model),
            self._weights_of_transposed_layers(),
            _images_in_their_range(),
            ranges_of_floats_alone(),
        ):
            annotated: GraphModule = super().annotate(model)
        new = (node for node in annotated.graph.nodes if node not in before)
        observe_what_is_shared(new, self._per_tensor.get_input_act_qspec())
        return annotated

    @contextmanager
    def _weights_of_transposed_layers(self) -> Iterator[None]:
        """Give weights whose scales would be those of input channels a single scale; Arm's partitioner requires it."""
        adjust: Callable[[Node, QuantizationSpec | None], Any] = TRANSPOSED_WEIGHT.original()

        def adjusted(node: Node, weight: QuantizationSpec | None) -> Any:
            made = adjust(node, weight)
            is_by_inputs = made is not None and made.qscheme == torch.per_channel_symmetric and made.ch_axis == 0
            is_transposed = node.target == torch.ops.aten.conv_transpose2d.input
            return self._per_tensor.weight if is_by_inputs and is_transposed else made

        with TRANSPOSED_WEIGHT.active(adjusted):
            yield


def _keep_limits(model: GraphModule) -> None:
    """Replace the least and the largest float32 among arguments by their neighbours: Arm takes these for infinite."""
    for node in model.graph.nodes:
        for position, value in enumerate(node.args):
            if isinstance(value, float) and abs(value) == torch.finfo(torch.float32).max:
                node.update_arg(position, float(torch.nextafter(torch.tensor(value), torch.tensor(0.0))))


def _images_in_their_range() -> AbstractContextManager[None]:
    """Let grid_sample have the range of its image, and not -1 ... 1, which is for graphics processors."""
    fixed = FIXED_RANGE.original()

    def fixed_but_for_images(target: Any, table: Any, observed: QuantizationSpec) -> Any:
        return observed if target == torch.ops.aten.grid_sampler.default else fixed(target, table, observed)

    return FIXED_RANGE.active(fixed_but_for_images)


def _integers_divided_as_such() -> AbstractContextManager[None]:
    """Leave divisions of integers as they are; an NPU that cannot compute them on integers leaves them to the CPU.

    So are those that have to be exact (quantization/integers.py), which state that they do not round.
    """
    decompose = ROUNDED_DIVISION.original()

    def divide(division: Any, op: Any, args: Any, kwargs: Any, meta: Any) -> Any:
        is_exact = all(map(division._is_integer_tensor, args[:2])) or kwargs.get("rounding_mode") is None
        if op == torch.ops.aten.div.Tensor_mode and is_exact:
            return super(type(division), division).call_operator(op, args, kwargs, meta)
        return decompose(division, op, args, kwargs, meta)

    return ROUNDED_DIVISION.active(divide)


def _factors_of_one_call() -> AbstractContextManager[None]:
    """Write a factor into a layer's weight and bias only where nothing else reads their memory."""
    is_read_by_one = IS_READ_BY_ONE_LAYER.original()

    def is_read_by_it_alone(folding: Any, constant: Node, layer: Node) -> bool:
        if not is_read_by_one(folding, constant, layer):
            return False
        reading = constant.graph.find_nodes(op="get_attr")
        read = [folding._get_constant_tensor(node) for node in reading if node is not constant]
        memory = _memory_of(folding._get_constant_tensor(constant))
        return all(tensor is None or _memory_of(tensor) != memory for tensor in read)

    return IS_READ_BY_ONE_LAYER.active(is_read_by_it_alone)


def _memory_of(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def ranges_of_floats_alone() -> AbstractContextManager[None]:
    """Let Arm's quantizers share a range only along tensors that have one: not by way of indices and comparisons."""
    enqueue = ENQUEUE_SHARED_NODE.original()

    def enqueue_along_floats(quantizer: Any, neighbor: Node, shared: set[Node], queue: list[Node]) -> None:
        reads = any(_has_floats(source) for source in shared.intersection(neighbor.all_input_nodes))
        if reads or (_has_floats(neighbor) and not shared.isdisjoint(neighbor.users)):
            enqueue(quantizer, neighbor, shared, queue)

    return ENQUEUE_SHARED_NODE.active(enqueue_along_floats)


def _has_floats(node: Node) -> bool:
    """Whether a result of `node`, which may have several, as a split does, is a tensor of floats."""
    values = tree_leaves(node.meta.get("val"))
    return any(isinstance(value, torch.Tensor) and value.is_floating_point() for value in values)


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
