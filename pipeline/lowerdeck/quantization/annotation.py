"""Parts of a model with another scheme or none, and chosen observers, over the quantizer of any backend.

A quantizer annotates nodes with how their inputs and outputs are to be quantized, and skips nodes that are annotated
already. So an empty annotation hides nodes from it: those that stay float, and those that have another scheme. This
needs no support by the backend, and also works for NeutronQuantizer, which has no settings per module.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torchao.quantization.pt2e.quantizer import (
    QuantizationAnnotation,
    QuantizationSpec,
    Quantizer,
    SharedQuantizationSpec,
)
from torchao.quantization.pt2e.quantizer.quantizer import Q_ANNOTATION_KEY

from lowerdeck.contracts.backends import Backend
from lowerdeck.contracts.quantization import ModuleRule, ObserverChoice, QuantizationScheme
from lowerdeck.graph.modules import check_modules_known, known_modules, matches, modules_of
from lowerdeck.quantization.observers import BACKEND_DEFAULT, observed_by

if TYPE_CHECKING:
    from torch.fx import Graph, GraphModule, Node

_FOLLOWERS = ("aten.batch_norm.", "aten.relu.", "aten.relu_.", "aten.hardtanh.", "aten.hardtanh_.")
"""Operators that backends fuse with the preceding one."""


def scheme_quantizer(backend: Backend, scheme: QuantizationScheme) -> Quantizer | None:
    """The quantizer for `scheme` with all its exceptions and observers, None where there is nothing to annotate.

    Raises:
        UnsupportedQuantizationError: the backend lacks the scheme, or that of a rule.
    """
    whole = backend.quantizer(_without_rules(scheme))
    default = scheme.activation_observer.kind == scheme.weight_observer.kind == BACKEND_DEFAULT
    if whole is None or (default and not scheme.rules):
        return whole
    return SchemeQuantizer(backend, scheme, whole)


class SchemeQuantizer(Quantizer):  # type: ignore[misc]  # torchao is untyped
    """A backend's quantizer, with another one for some modules, none for others, and chosen observers."""

    def __init__(self, backend: Backend, scheme: QuantizationScheme, whole: Quantizer) -> None:
        """`whole` is the backend's quantizer for `scheme` without its rules."""
        super().__init__()
        self._backend = backend
        self._scheme = scheme
        self._whole = whole

    def transform_for_annotation(self, model: GraphModule) -> GraphModule:
        """The backend's own transformation, without the parts for quantized nodes where nodes stay float."""
        check_patterns_match(model.graph, self._scheme.rules)
        with _hidden(self._float_nodes(model.graph)):
            transformed: GraphModule = self._whole.transform_for_annotation(model)
        _show(transformed.graph.nodes)  # a transformation may have copied annotations to new nodes
        return transformed

    def annotate(self, model: GraphModule) -> GraphModule:
        """Annotate first the modules that have a scheme of their own, then the rest."""
        graph = model.graph
        kept = self._float_nodes(graph)
        groups = self._groups(graph)
        for (scheme, granularity), nodes in groups.items():
            self._annotate_only(model, scheme, granularity, nodes)
        with _hidden([*kept, *(node for nodes in groups.values() for node in nodes if not _annotated(node))]):
            self._whole.annotate(model)
        for (scheme, granularity), nodes in groups.items():  # what shares the quantization of a neighbour
            self._annotate_only(model, scheme, granularity, nodes)
        _repair_float_neighbours(graph, kept)
        self._choose_observers(graph)
        return model

    def validate(self, model: GraphModule) -> None:
        """The backend's own check."""
        self._whole.validate(model)

    def prepare_obs_or_fq_callback(self, model: GraphModule, edge_or_node_to_obs_or_fq: dict[Any, Any]) -> None:
        """The backend's own final changes to observers."""
        self._whole.prepare_obs_or_fq_callback(model, edge_or_node_to_obs_or_fq)

    def _float_nodes(self, graph: Graph) -> list[Node]:
        return [node for node, rule in rule_of_node(graph, self._scheme.rules).items() if rule.scheme is None]

    def _groups(self, graph: Graph) -> dict[tuple[str, str], list[Node]]:
        """Nodes by the scheme and weight granularity that a rule assigns to them."""
        groups: dict[tuple[str, str], list[Node]] = {}
        for node, rule in rule_of_node(graph, self._scheme.rules).items():
            if rule.scheme is not None:
                groups.setdefault((rule.scheme, rule.weight_granularity), []).append(node)
        return groups

    def _annotate_only(self, model: GraphModule, scheme: str, granularity: str, nodes: Collection[Node]) -> None:
        inside = set(nodes)
        others = [node for node in model.graph.nodes if node not in inside and not _annotated(node)]
        quantizer = self._backend.quantizer(
            QuantizationScheme(name=scheme, weight_granularity=granularity, is_qat=self._scheme.is_qat)
        )
        assert quantizer is not None
        with _hidden(others):
            quantizer.annotate(model)

    def _choose_observers(self, graph: Graph) -> None:
        for node in graph.nodes:
            annotation = node.meta.get(Q_ANNOTATION_KEY)
            if annotation is None:
                continue
            for source, spec in annotation.input_qspec_map.items():
                annotation.input_qspec_map[source] = self._observed(spec, is_weight=_is_weight(source, spec))
            annotation.output_qspec = self._observed(annotation.output_qspec, is_weight=_is_weight(node, spec=None))

    def _observed(self, spec: Any, *, is_weight: bool) -> Any:
        choice: ObserverChoice = self._scheme.weight_observer if is_weight else self._scheme.activation_observer
        if choice.kind == BACKEND_DEFAULT or not isinstance(spec, QuantizationSpec) or spec.is_dynamic:
            return spec
        return observed_by(spec, choice)


def rule_of_node(graph: Graph, rules: Collection[ModuleRule]) -> dict[Node, ModuleRule]:
    """The rule that applies to each node, the last one that matches; nodes without a rule are left out.

    A batch norm or an activation function follows the node before it, with which backends fuse it, unless a rule names
    it.
    """
    found: dict[Node, ModuleRule] = {}
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        modules = modules_of(node)
        rule = next((rule for rule in reversed(list(rules)) if matches(modules, rule.modules, rule.types)), None)
        if rule is None and str(node.target).startswith(_FOLLOWERS):
            before = node.args[0]
            rule = found.get(before) if len(before.users) == 1 else None
        if rule is not None:
            found[node] = rule
    return found


def check_patterns_match(graph: Graph, rules: Collection[ModuleRule]) -> None:
    """Raise ConfigurationError where a pattern of `rules` names no module.

    Batch norms have been folded into convolutions, so a pattern that names nothing else is refused as well.
    """
    known = known_modules(graph)
    for index, rule in enumerate(rules):
        key = f"quantization.rules.{index}" if rule.scheme else "quantization.keep_float (or a rule with float32)"
        check_modules_known(known, key, rule.modules, rule.types)


def _without_rules(scheme: QuantizationScheme) -> QuantizationScheme:
    """`scheme` without rules, as a backend's own quantizer takes it."""
    default = ObserverChoice()
    return dataclasses.replace(scheme, rules=(), activation_observer=default, weight_observer=default)


class _Hidden(QuantizationAnnotation):  # type: ignore[misc]
    """An empty annotation, which marks nodes that a quantizer must not annotate."""


@contextmanager
def _hidden(nodes: Collection[Node]) -> Iterator[None]:
    for node in nodes:
        if node.op != "get_attr":  # a weight belongs to the node that takes it
            node.meta[Q_ANNOTATION_KEY] = _Hidden(_annotated=True)
    try:
        yield
    finally:
        _show(nodes)


def _show(nodes: Iterable[Node]) -> None:
    for node in nodes:
        if isinstance(node.meta.get(Q_ANNOTATION_KEY), _Hidden):
            del node.meta[Q_ANNOTATION_KEY]


def _annotated(node: Node) -> bool:
    return Q_ANNOTATION_KEY in node.meta


def _is_weight(source: Node, spec: Any) -> bool:
    """Whether `spec` is that of a weight: a constant, quantized symmetrically."""
    symmetric = (torch.per_tensor_symmetric, torch.per_channel_symmetric)
    return source.op == "get_attr" and isinstance(spec, QuantizationSpec) and spec.qscheme in symmetric


def _repair_float_neighbours(graph: Graph, kept: Collection[Node]) -> None:
    """Make annotations whole again where float nodes are beside quantized ones.

    A quantized node has to quantize its output although a fused activation stays float; nothing can share the
    quantization of a float node; and inputs and outputs of the model that only float nodes touch stay float.
    """
    if not kept:
        return
    floats = set(kept)
    annotated = [node for node in graph.nodes if _annotated(node)]
    default = next((spec for node in annotated if (spec := _activation_spec(node)) is not None), None)
    for node in annotated:
        annotation = node.meta[Q_ANNOTATION_KEY]
        if node.op == "placeholder" and node.users and floats.issuperset(node.users):
            del node.meta[Q_ANNOTATION_KEY]
        elif node.op == "output":
            for source in floats.intersection(annotation.input_qspec_map):
                del annotation.input_qspec_map[source]
        elif annotation.output_qspec is None and floats.intersection(node.users):
            annotation.output_qspec = _activation_spec(node)
    for node in filter(_annotated, annotated):
        _unshare_with_float(node, _activation_spec(node) or default)


def _unshare_with_float(node: Node, activation: QuantizationSpec | None) -> None:
    annotation = node.meta[Q_ANNOTATION_KEY]
    for source, spec in annotation.input_qspec_map.items():
        if isinstance(spec, SharedQuantizationSpec) and not _is_observed(spec.edge_or_node):
            annotation.input_qspec_map[source] = activation
    shared = annotation.output_qspec
    if isinstance(shared, SharedQuantizationSpec) and not _is_observed(shared.edge_or_node):
        edge = (shared.edge_or_node, node)
        annotation.output_qspec = SharedQuantizationSpec(edge) if _is_observed(edge) else activation


def _is_observed(edge_or_node: Any) -> bool:
    """Whether an observer will be put on an edge or behind a node."""
    source, user = edge_or_node if isinstance(edge_or_node, tuple) else (None, edge_or_node)
    annotation = user.meta.get(Q_ANNOTATION_KEY) if isinstance(user, torch.fx.Node) else None
    if annotation is None:
        return False
    spec = annotation.output_qspec if source is None else annotation.input_qspec_map.get(source)
    return spec is not None


def _activation_spec(node: Node) -> QuantizationSpec | None:
    """How `node` has its output or an input quantized, where ranges are fixed in advance and not by the operator."""
    annotation = node.meta[Q_ANNOTATION_KEY]
    inputs = [spec for source, spec in annotation.input_qspec_map.items() if source.op != "get_attr"]
    for spec in (annotation.output_qspec, *inputs):
        if isinstance(spec, QuantizationSpec) and not spec.is_dynamic:
            return spec
    return None
