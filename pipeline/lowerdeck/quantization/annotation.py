"""Other schemes or none for parts of a model, and chosen observers, with the quantizer of any backend.

A quantizer annotates nodes with the quantization of their inputs and outputs, and skips annotated nodes. An empty
annotation therefore hides nodes from it that stay float or have another scheme. The backend need not support this:
even NeutronQuantizer works, which has no settings per module.
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
)
from torchao.quantization.pt2e.quantizer.quantizer import Q_ANNOTATION_KEY

from lowerdeck.contracts.backends import Backend
from lowerdeck.contracts.quantization import ModuleRule, ObserverChoice, QuantizationScheme
from lowerdeck.graph.modules import check_modules_known, known_modules, matches, modules_of
from lowerdeck.quantization.fallback import activation_spec, quantizer_of, unshare_with_float
from lowerdeck.quantization.observers import BACKEND_DEFAULT, observed_by

if TYPE_CHECKING:
    from torch.fx import Graph, GraphModule, Node

_FOLLOWERS = ("aten.batch_norm.", "aten.relu.", "aten.hardtanh.")
"""Operators that backends fuse with their predecessor."""


def scheme_quantizer(backend: Backend, scheme: QuantizationScheme) -> Quantizer | None:
    """The quantizer for `scheme` with its rules and observers, None where there is nothing to annotate.

    Raises:
        UnsupportedQuantizationError: the backend lacks the scheme or that of a rule.
    """
    default = ObserverChoice()
    plain = dataclasses.replace(scheme, rules=(), activation_observer=default, weight_observer=default)
    whole = quantizer_of(backend, plain)
    has_defaults = scheme.activation_observer.kind == scheme.weight_observer.kind == BACKEND_DEFAULT
    if whole is None or (has_defaults and not scheme.rules):
        return whole
    return SchemeQuantizer(backend, scheme, whole)


class SchemeQuantizer(Quantizer):  # type: ignore[misc]  # torchao is untyped
    """A backend's quantizer, with other schemes or none for some modules, and chosen observers."""

    def __init__(self, backend: Backend, scheme: QuantizationScheme, whole: Quantizer) -> None:
        """`whole` is the backend's quantizer for `scheme` without its rules."""
        super().__init__()
        self._backend = backend
        self._scheme = scheme
        self._whole = whole

    def transform_for_annotation(self, model: GraphModule) -> GraphModule:
        """Apply the backend's transformation, except to nodes that stay float."""
        check_patterns_match(model.graph, self._scheme.rules)
        with hidden(self._float_nodes(model.graph)):
            transformed: GraphModule = self._whole.transform_for_annotation(model)
        show(transformed.graph.nodes)  # the transformation may have copied annotations to new nodes
        return transformed

    def annotate(self, model: GraphModule) -> GraphModule:
        """Annotate modules with a scheme of their own first, then the rest."""
        graph = model.graph
        floats = self._float_nodes(graph)
        groups = self._groups(graph)
        for (scheme, granularity), nodes in groups.items():
            self._annotate_only(model, scheme, granularity, nodes)
        with hidden([*floats, *(node for nodes in groups.values() for node in nodes if not _annotated(node))]):
            self._whole.annotate(model)
        for (scheme, granularity), nodes in groups.items():  # nodes that share the quantization of a neighbour
            self._annotate_only(model, scheme, granularity, nodes)
        repair_float_neighbours(graph, floats)
        self._choose_observers(graph)
        return model

    def validate(self, model: GraphModule) -> None:
        """Run the backend's check."""
        self._whole.validate(model)

    def prepare_obs_or_fq_callback(self, model: GraphModule, edge_or_node_to_obs_or_fq: dict[Any, Any]) -> None:
        """Run the backend's final changes to observers."""
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
        quantizer = quantizer_of(
            self._backend,
            QuantizationScheme(name=scheme, weight_granularity=granularity, is_qat=self._scheme.is_qat),
        )
        assert quantizer is not None
        with hidden(others):
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
    """The last matching rule for each node that has one.

    A batch norm or activation function has the rule of the node that backends fuse it with, unless a rule names it.
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
    """Raise ConfigurationError for a pattern of `rules` that matches no module.

    Batch norms have been folded into convolutions, so a pattern for batch norms alone is rejected too.
    """
    known = known_modules(graph)
    for index, rule in enumerate(rules):
        key = f"quantization.rules.{index}" if rule.scheme else "quantization.keep_float (or a rule with float32)"
        check_modules_known(known, key, rule.modules, rule.types)


class _Hidden(QuantizationAnnotation):  # type: ignore[misc]
    """An empty annotation, which hides a node from quantizers."""


@contextmanager
def hidden(nodes: Collection[Node]) -> Iterator[None]:
    """Let quantizers skip `nodes` while the context is open."""
    for node in nodes:
        if node.op != "get_attr":  # a weight belongs to the node that uses it
            node.meta[Q_ANNOTATION_KEY] = _Hidden(_annotated=True)
    try:
        yield
    finally:
        show(nodes)


def show(nodes: Iterable[Node]) -> None:
    """Let quantizers see `nodes` again, or copies of them."""
    for node in nodes:
        if isinstance(node.meta.get(Q_ANNOTATION_KEY), _Hidden):
            del node.meta[Q_ANNOTATION_KEY]


def _annotated(node: Node) -> bool:
    return Q_ANNOTATION_KEY in node.meta


def _is_weight(source: Node, spec: Any) -> bool:
    """Whether `spec` belongs to a weight: a constant, quantized symmetrically."""
    symmetric = (torch.per_tensor_symmetric, torch.per_channel_symmetric)
    return source.op == "get_attr" and isinstance(spec, QuantizationSpec) and spec.qscheme in symmetric


def repair_float_neighbours(graph: Graph, float_nodes: Collection[Node]) -> None:
    """Repair annotations where float and quantized nodes are adjacent.

    A quantized node must quantize its output even if a fused activation stays float, no node can share the
    quantization of a float node, and inputs and outputs of the model that only float nodes use stay float. So does an
    input of `float_nodes`: what else reads it quantizes it there.
    """
    if not float_nodes:
        return
    floats = set(float_nodes)
    annotated = [node for node in graph.nodes if _annotated(node)]
    default = next((spec for node in annotated if (spec := activation_spec(node)) is not None), None)
    for node in annotated:
        annotation = node.meta[Q_ANNOTATION_KEY]
        if node.op == "placeholder" and (node in floats or (node.users and floats.issuperset(node.users))):
            del node.meta[Q_ANNOTATION_KEY]
        elif node.op == "output":
            for source in floats.intersection(annotation.input_qspec_map):
                del annotation.input_qspec_map[source]
        elif annotation.output_qspec is None and floats.intersection(node.users):
            annotation.output_qspec = activation_spec(node)
    for node in filter(_annotated, annotated):
        unshare_with_float(node, activation_spec(node) or default)
