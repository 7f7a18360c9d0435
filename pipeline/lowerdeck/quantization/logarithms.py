"""Arguments of logarithms that come near zero stay in float: 8 bits would round their smallest values to zero.

A power spectrum covers six decades and more, and its logarithm has the differences between small numbers: in int8 all
below 1/255 of the largest one are the same, so that next to nothing of `torch.log(power + 1e-6)` is left.
"""

from __future__ import annotations

import operator
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import torch

from lowerdeck.graph.masked_scores import HANDING_ON, packet_of
from lowerdeck.graph.quantities import LAYERS
from lowerdeck.graph.unlike_inputs import IS_STATE
from lowerdeck.quantization.divisors import (
    is_constant,
    is_observer,
    lowest_and_step,
    number_beside,
    remove,
    with_sources,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch.fx import GraphModule, Node

    Modules = Mapping[str, Any]

_aten = torch.ops.aten
_FLAT_AT_ZERO = (_aten.log1p, _aten.asinh)
"""As steep as logarithms beyond 1 only."""
_LOGARITHMS = (_aten.log, _aten.log2, _aten.log10, *_FLAT_AT_ZERO)
_STEEPEST_ROOT = 0.5
"""Powers with smaller exponents are as steep near zero as logarithms are."""
_PRODUCTS = (_aten.conv1d, _aten.conv2d, _aten.conv3d, _aten.linear, _aten.matmul, _aten.mm, _aten.bmm)
_NORMS = (_aten.batch_norm, _aten.layer_norm, _aten.group_norm, _aten.instance_norm, _aten.rms_norm)
_AWAY_FROM_ZERO = (_aten.exp, _aten.cos, _aten.sigmoid, _aten.softmax, _aten.softplus, *_LOGARITHMS)
"""Operators whose results are not near zero where their arguments are."""


def keep_logarithms_in_float(calibrated: GraphModule) -> None:
    """Remove observers around arguments of logarithms and roots whose smallest values are less than a step.

    So are those of what is computed for such arguments only, and of inputs that nothing else reads, back to the layers,
    whose results stay quantized, but for products of powers with a filter bank, as for mel spectra.
    """
    modules = dict(calibrated.named_modules(remove_duplicate=False))
    steep = [node for node in calibrated.graph.nodes if _is_steep(node, calibrated, modules)]
    inside = {node for node in steep if _is_lost(node, calibrated, modules)}
    found = list[torch.fx.Node]()
    for node in reversed(calibrated.graph.nodes):
        if not node.users or not inside.issuperset(node.users):
            continue
        if is_observer(node, modules):
            if not _is_behind_layer(node, calibrated, modules):
                found.append(node)
                inside.add(node)
        elif _has_no_weights(node) or _is_filter(node, calibrated, modules):
            inside.add(node)
    remove(found, calibrated)


def _is_steep(node: Node, module: GraphModule, modules: Modules) -> bool:
    if packet_of(node) in _LOGARITHMS:
        return True
    exponent, source = _exponent(node, module, modules), node.args[0] if node.args else None
    while exponent is not None and exponent >= _STEEPEST_ROOT and isinstance(source, torch.fx.Node):
        if not is_observer(source, modules) and not _keeps_scale(source, module, modules):
            break
        inner = _exponent(source, module, modules)  # of a root of a root, exponents are multiplied
        exponent, source = exponent * (1.0 if inner is None else inner), source.args[0]
    return exponent is not None and exponent < _STEEPEST_ROOT


def _exponent(node: Node, module: GraphModule, modules: Modules) -> float | None:
    """The smallest exponent of a power, a number or the values of a constant such as a parameter; None if unknown."""
    if packet_of(node) is _aten.sqrt:
        return 0.5
    if packet_of(node) is not _aten.pow:
        return None
    exponent: Any = node.args[1]
    if isinstance(exponent, torch.fx.Node):
        return float(_value(exponent, module, modules).min()) if is_constant(exponent) else None
    return float(exponent)


def _is_lost(node: Node, module: GraphModule, modules: Modules) -> bool:
    """Whether the smallest value that `node` computes with is less than a step of an observer of its argument."""
    added = 1.0 if packet_of(node) in _FLAT_AT_ZERO else 0.0
    for observer, number in _direct(node.args[0], module, modules):
        lowest, step = lowest_and_step(modules[str(observer.target)])
        if step > max(lowest, number, 0.0) + added:
            return True
    return False


def _direct(argument: Any, module: GraphModule, modules: Modules) -> Iterator[tuple[Node, float]]:
    """Observers of a logarithm's argument, and of what numbers are added to, with the largest of these numbers.

    Where nothing observes the argument itself, as on XNNPACK, those of numbers from zero on that it is computed of.
    """
    pending, is_observed, is_computed = [(argument, 0.0)], False, False
    seen = set[tuple[Any, float]]()
    while pending:
        node, number = pending.pop()
        if not isinstance(node, torch.fx.Node) or (node, number) in seen:
            continue
        seen.add((node, number))
        beside = number_beside(node, module)
        if is_observer(node, modules):
            is_observed = True
            if not is_computed or lowest_and_step(modules[str(node.target)])[0] >= 0:
                yield node, number
        elif beside is not None:
            number = max(number, beside)
        elif not _keeps_scale(node, module, modules) and not _is_filter(node, module, modules):
            if is_observed or not _has_no_weights(node) or packet_of(node) in _AWAY_FROM_ZERO:
                continue
            is_computed = True
            pending += [(each, number) for each in node.all_input_nodes[1:]]
        pending += [(each, number) for each in node.all_input_nodes[:1]]


def _keeps_scale(node: Node, module: GraphModule, modules: Modules) -> bool:
    """Whether `node` hands elements on, or is a root, whose small results are those of even smaller numbers."""
    exponent = _exponent(node, module, modules)
    return packet_of(node) in HANDING_ON or (exponent is not None and 0 < exponent < 1)


def _has_no_weights(node: Node) -> bool:
    packet = packet_of(node) or node.target
    is_known = packet is operator.getitem or getattr(node.target, "namespace", None) == "aten"
    return node.op == "call_function" and is_known and packet not in (*LAYERS, *_NORMS)


def _is_behind_layer(node: Node, module: GraphModule, modules: Modules) -> bool:
    """Whether `node` sees or is the result of a layer with quantized weights, or fused with one, or a model's state."""
    pending, seen = [node], set[torch.fx.Node]()
    while pending:
        each = pending.pop()
        if each in seen:
            continue
        seen.add(each)
        if _has_no_weights(each) or each is node or _is_filter(each, module, modules):
            pending += [source for source in each.all_input_nodes if not is_observer(source, modules)]
        elif IS_STATE in each.meta or any(is_observer(source, modules) for source in each.all_input_nodes[1:]):
            return True
    return False


def _is_filter(node: Node, module: GraphModule, modules: Modules) -> bool:
    """Whether `node` is a product of computed numbers, such as powers, with weights, and neither are ever negative."""
    if packet_of(node) not in _PRODUCTS:
        return False
    data = [each for each in node.args[:2] if isinstance(each, torch.fx.Node) and not is_constant(each)]
    is_computed = any(_is_computed(each, module, modules) for each in data)
    return is_computed and all(_is_never_negative(each, module, modules) for each in node.args[:2])


def _is_computed(node: Node, module: GraphModule, modules: Modules) -> bool:
    """Whether `node` is an input of the model, or computed without weights, perhaps in another shape."""
    while is_observer(node, modules) or packet_of(node) in HANDING_ON:
        node = node.all_input_nodes[0]
    return node.op == "placeholder" or (_has_no_weights(node) and not _is_behind_layer(node, module, modules))


def _is_never_negative(node: Any, module: GraphModule, modules: Modules) -> bool:
    """By the values of a constant, or by what was recorded of `node`."""
    if is_constant(node):
        return bool((_value(node, module, modules) >= 0).all())
    while packet_of(node) in HANDING_ON:
        node = node.args[0]
    recorded: Any = modules[str(node.target)] if is_observer(node, modules) else None
    least: Any = getattr(getattr(recorded, "activation_post_process", recorded), "min_val", None)
    return least is not None and least.numel() > 0 and bool((least >= 0).all())


def _value(constant: Node, module: GraphModule, modules: Modules) -> Any:
    """What a node computes that depends on no input."""
    values = dict[torch.fx.Node, Any]()
    for node in sorted(with_sources(constant)):
        if node.op == "get_attr":
            values[node] = attrgetter(str(node.target))(module)
        elif packet_of(node) is _aten.full_like:  # with_sources has no operand of it
            values[node] = torch.tensor(node.args[1])
        elif is_observer(node, modules):
            values[node] = values[node.all_input_nodes[0]]
        else:
            args, kwargs = torch.fx.map_arg((node.args, node.kwargs), values.__getitem__)
            function: Any = node.target
            values[node] = function(*args, **kwargs)
    return values[constant]
