"""A calibrated model in which each layer can be quantized or left float without converting it again.

Every observer becomes a switch. When on, it rounds to the steps that calibration found, with the operators of a
quantized program; when off, it passes values through. As with `quantization.keep_float`, a choice of float nodes
decides which switches are on: a tensor is quantized while any quantized node requires it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.ao.quantization.fx._decomposed
from torch.utils._pytree import tree_leaves
from torchao.quantization.pt2e.quantizer.quantizer import Q_ANNOTATION_KEY

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.contracts.quantization import ModuleRule
from lowerdeck.graph.modules import modules_of
from lowerdeck.quantization.annotation import rule_of_node
from lowerdeck.quantization.ranges import constants, grid, observer_nodes

if TYPE_CHECKING:
    from torch.fx import Graph, GraphModule, Node

_OPERATORS = torch.ops.quantized_decomposed


@dataclass(frozen=True)
class _QuantizationRequest:
    """A node that requires a tensor to be quantized."""

    node: str
    floats: frozenset[str]
    """Where all of these nodes stay float, the node no longer requires it."""


class SwitchedModel:
    """A calibrated model with a switch in place of every observer."""

    def __init__(self, prepared: GraphModule) -> None:
        """`prepared` is calibrated; its observers are replaced.

        Raises:
            LowerdeckError: ranges are determined at run time, so there is nothing to switch.
        """
        bare = _without_observers(prepared)
        self._rules = {path: _float_nodes(bare, path) for path in _annotated_paths(bare)}
        self._nodes = frozenset(node.name for node in bare.nodes if node.op == "call_function")
        self._requests = {node.name: _requests(node, bare) for node in observer_nodes(prepared)}
        self._switches = _put_switches(prepared)
        self._model = prepared

    @property
    def switches(self) -> frozenset[str]:
        """Names of all tensors that can be quantized."""
        return frozenset(self._switches)

    def layers(self) -> dict[str, tuple[str, ...]]:
        """The modules that can be left float by themselves, in graph order: path -> nodes that then stay float.

        Modules are left out if all their nodes are fused with a preceding operator, or if the choice changes no tensor.
        """
        found = {}
        for path, nodes in self._rules.items():
            follows = any(nodes < others and not path.startswith(f"{other}.") for other, others in self._rules.items())
            if not follows and self.switches_with_float([path]) != self.switches:
                found[path] = tuple(sorted(nodes))
        return found

    def switches_with_float(self, paths: Iterable[str]) -> frozenset[str]:
        """The tensors that are quantized while the modules at `paths` stay float."""
        return self._on(frozenset().union(*(self._rules[path] for path in paths)))

    def switches_for_layer(self, path: str) -> frozenset[str]:
        """The tensors that are quantized while all modules but the one at `path` stay float."""
        return self._on(self._nodes - self._rules[path])

    def run(self, on: Collection[str], inputs: tuple[torch.Tensor, ...], output: int = 0) -> torch.Tensor:
        """The model's output number `output` with the tensors `on` quantized."""
        for name, switch in self._switches.items():
            switch.on = name in on
        chosen: torch.Tensor = tree_leaves(self._model(*inputs))[output]
        return chosen

    def _on(self, floats: frozenset[str]) -> frozenset[str]:
        return frozenset(
            name for name in self._switches if any(_is_active(request, floats) for request in self._requests[name])
        )


class _Switch(torch.nn.Module):
    """Rounds to the steps of a quantization when it is on."""

    def __init__(self, observer: Any, *, is_constant: bool) -> None:
        super().__init__()
        steps = grid(observer)
        if steps is None:
            raise LowerdeckError(
                "the ranges of activations are determined at run time, so no layer can be measured by itself; "
                "choose a scheme with fixed ranges, e.g. `quantization: int8`"
            )
        self._steps, self._dtype = steps, observer.dtype
        self._is_constant = is_constant
        self._cached: torch.Tensor | None = None
        self.on = True

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """`values`, rounded where the switch is on; same shape."""
        if not self.on:
            return values
        rounded = self._rounded(values) if self._cached is None else self._cached
        self._cached = rounded if self._is_constant else None
        return rounded

    def _rounded(self, values: torch.Tensor) -> torch.Tensor:
        steps = self._steps
        limits = (steps.quant_min, steps.quant_max, self._dtype)
        if steps.axis is None:
            qparams: tuple[Any, ...] = (float(steps.scale), int(steps.zero_point), *limits)
            quantize, dequantize = _OPERATORS.quantize_per_tensor, _OPERATORS.dequantize_per_tensor
        else:
            qparams = (steps.scale, steps.zero_point, steps.axis, *limits)
            quantize, dequantize = _OPERATORS.quantize_per_channel, _OPERATORS.dequantize_per_channel
        rounded: torch.Tensor = dequantize(quantize(values, *qparams), *qparams)
        return rounded


def _put_switches(prepared: GraphModule) -> dict[str, _Switch]:
    modules = dict(prepared.named_modules(remove_duplicate=False))
    fixed = constants(prepared)
    switches = {
        node.name: _Switch(modules[node.target], is_constant=node in fixed) for node in observer_nodes(prepared)
    }
    for name, switch in switches.items():  # only now: other observers may derive their ranges from replaced ones
        prepared.set_submodule(name, switch)
    return switches


def _without_observers(prepared: GraphModule) -> Graph:
    """The graph as the quantizer annotated it."""
    graph = torch.fx.Graph()
    copies: dict[Node, Node] = {}
    observers = set(observer_nodes(prepared))
    for node in prepared.graph.nodes:
        copies[node] = copies[node.args[0]] if node in observers else graph.node_copy(node, copies.__getitem__)
    return graph


def _annotated_paths(bare: Graph) -> list[str]:
    """Paths of the innermost modules of all annotated nodes, in graph order."""
    paths: dict[str, None] = {}
    for node in bare.nodes:
        if node.op == "call_function" and Q_ANNOTATION_KEY in node.meta and (modules := modules_of(node)):
            paths.setdefault(list(modules)[-1])
    return list(paths)


def _float_nodes(bare: Graph, path: str) -> frozenset[str]:
    return frozenset(node.name for node in rule_of_node(bare, [ModuleRule(modules=(path,))]))


def _requests(observer: Node, bare: Graph) -> list[_QuantizationRequest]:
    """The nodes whose annotation requires the tensor of `observer` to be quantized."""
    nodes = {node.name: node for node in bare.nodes}
    source: Any = observer.args[0]
    direct = source.name in nodes
    while source.name not in nodes:
        source = source.args[0]
    producer, requests = nodes[source.name], []
    if direct and _annotation(producer, "output_qspec") is not None:
        requests.append(_QuantizationRequest(producer.name, _readers_of_input(producer)))
    for user in observer.users:
        wanted = _annotation(nodes[user.name], "input_qspec_map") if user.name in nodes else None
        if wanted and any(node.name == producer.name and spec is not None for node, spec in wanted.items()):
            # The model's output stays float where a float node computes it.
            requests.append(_QuantizationRequest(user.name, frozenset([producer.name] if user.op == "output" else [])))
    return requests


def _readers_of_input(producer: Node) -> frozenset[str]:
    """The nodes that read `producer` if it is an input of the model, which stays float where all of them do."""
    return frozenset(user.name for user in producer.users) if producer.op == "placeholder" else frozenset()


def _is_active(request: _QuantizationRequest, floats: frozenset[str]) -> bool:
    return request.node not in floats and not (request.floats and request.floats <= floats)


def _annotation(node: Node, field: str) -> Any:
    annotation: Mapping[str, Any] | Any = node.meta.get(Q_ANNOTATION_KEY)
    return None if annotation is None else getattr(annotation, field)
