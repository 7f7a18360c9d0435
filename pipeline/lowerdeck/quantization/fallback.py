"""The quantizer of a target with a kernel library beneath its delegate."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torchao.quantization.pt2e.quantizer import QuantizationSpec, Quantizer, SharedQuantizationSpec
from torchao.quantization.pt2e.quantizer.quantizer import Q_ANNOTATION_KEY

from lowerdeck.contracts.backends import Backend
from lowerdeck.contracts.quantization import QuantizationScheme

if TYPE_CHECKING:
    from torch.fx import GraphModule, Node


def quantizer_of(backend: Backend, scheme: QuantizationScheme) -> Quantizer | None:
    """The quantizer of `backend` and of the library beneath it, if any that has `scheme`.

    Raises:
        UnsupportedQuantizationError: the backend lacks the scheme.
    """
    quantizer, library = backend.quantizer(scheme), backend.fallback
    if quantizer is None or library is None or scheme.is_qat or scheme.name not in library.schemes:
        return quantizer
    return FallbackQuantizer(quantizer, lambda: library.create_quantizer(QuantizationScheme(name=scheme.name)))


class FallbackQuantizer(Quantizer):  # type: ignore[misc]  # torchao is untyped
    """The delegate's quantizer annotates first, and the library's what is left; ADR 0050 has the order.

    Some operators, such as pooling, have the quantization of what they read. A delegate's quantizer leaves them in
    float behind an operator that only the library quantizes. It is therefore asked again, before the library takes
    them.
    """

    def __init__(self, delegate: Quantizer, library: Callable[[], Quantizer]) -> None:
        """`library` creates a quantizer for one call of `annotate`: torchao's refuse nodes that changed between two."""
        super().__init__()
        self._delegate, self._library = delegate, library

    def transform_for_annotation(self, model: GraphModule) -> GraphModule:
        """Run the delegate's transformation alone: that of the library could replace what the delegate computes."""
        transformed: GraphModule = self._delegate.transform_for_annotation(model)
        return transformed

    def annotate(self, model: GraphModule) -> GraphModule:
        """Annotate `model`."""
        for keep_sharing in (False, True):
            model = self._delegate.annotate(model)
            with _agreeing(model, keep_sharing=keep_sharing):
                model = self._library().annotate(model)
        for node in [node for node in model.graph.nodes if Q_ANNOTATION_KEY in node.meta]:
            unshare_with_float(node, activation_spec(node))  # the library quantizes what a comparison takes alone
        return model

    def validate(self, model: GraphModule) -> None:
        """Run the delegate's check."""
        self._delegate.validate(model)

    def prepare_obs_or_fq_callback(self, model: GraphModule, edge_or_node_to_obs_or_fq: dict[Any, Any]) -> None:
        """Run the delegate's final changes to observers."""
        self._delegate.prepare_obs_or_fq_callback(model, edge_or_node_to_obs_or_fq)


@contextmanager
def _agreeing(model: GraphModule, *, keep_sharing: bool) -> Iterator[None]:
    """Change what is annotated while the context is open, so that it agrees with what was annotated before.

    Tensors between two nodes have one quantization only if both annotations state the same observer. Without
    `keep_sharing`, nodes with the quantization of what they read lose their annotation again.
    """
    before = {node: dict(node.meta) for node in model.graph.nodes if Q_ANNOTATION_KEY not in node.meta}
    specs = (activation_spec(node) for node in model.graph.nodes if node not in before)
    of_delegate = next(filter(None, specs), None)
    yield
    for node in [node for node in before if Q_ANNOTATION_KEY in node.meta]:
        annotation = node.meta[Q_ANNOTATION_KEY]
        if not keep_sharing and isinstance(annotation.output_qspec, SharedQuantizationSpec):
            node.meta = before[node]
        elif of_delegate is not None:
            of_inputs = {source: _same(spec, of_delegate) for source, spec in annotation.input_qspec_map.items()}
            annotation.input_qspec_map = of_inputs
            annotation.output_qspec = _same(annotation.output_qspec, of_delegate)


def _same(spec: Any, of_delegate: QuantizationSpec) -> Any:
    """`of_delegate` in place of the quantization `spec` where both state the same integers."""
    return of_delegate if isinstance(spec, QuantizationSpec) and _integers(spec) == _integers(of_delegate) else spec


def _integers(spec: QuantizationSpec) -> tuple[Any, ...]:
    limits = torch.iinfo(spec.dtype)
    low = limits.min if spec.quant_min is None else spec.quant_min
    high = limits.max if spec.quant_max is None else spec.quant_max
    return spec.dtype, low, high, spec.qscheme, bool(spec.is_dynamic)


def activation_spec(node: Node) -> QuantizationSpec | None:
    """The quantization of the output or an input of `node`, if its ranges come from calibration."""
    annotation = node.meta[Q_ANNOTATION_KEY]
    inputs = [spec for source, spec in annotation.input_qspec_map.items() if source.op != "get_attr"]
    for spec in (annotation.output_qspec, *inputs):
        if isinstance(spec, QuantizationSpec) and not spec.is_dynamic:
            return spec
    return None


def unshare_with_float(node: Node, activation: QuantizationSpec | None) -> None:
    """Give `node` the quantization `activation` where it would have that of a tensor that stays in float."""
    annotation = node.meta[Q_ANNOTATION_KEY]
    for source, spec in annotation.input_qspec_map.items():
        if isinstance(spec, SharedQuantizationSpec) and not _is_observed(spec.edge_or_node):
            annotation.input_qspec_map[source] = activation
    shared = annotation.output_qspec
    if isinstance(shared, SharedQuantizationSpec) and not _is_observed(shared.edge_or_node):
        edge = (shared.edge_or_node, node)
        annotation.output_qspec = SharedQuantizationSpec(edge) if _is_observed(edge) else activation


def _is_observed(edge_or_node: Any) -> bool:
    """Whether an edge or a node's output will have an observer."""
    source, user = edge_or_node if isinstance(edge_or_node, tuple) else (None, edge_or_node)
    annotation = user.meta.get(Q_ANNOTATION_KEY) if isinstance(user, torch.fx.Node) else None
    if annotation is None:
        return False
    spec = annotation.output_qspec if source is None else annotation.input_qspec_map.get(source)
    return spec is not None
