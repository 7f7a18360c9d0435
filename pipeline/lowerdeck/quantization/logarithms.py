"""Arguments of logarithms that come near zero stay in float: 8 bits would round their smallest values to zero.

A power spectrum covers six decades and more, and its logarithm has the differences between small numbers: in int8 all
below 1/255 of the largest one are the same, so that next to nothing of `torch.log(power + 1e-6)` is left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from lowerdeck.quantization.divisors import SHAPES, SUMS, is_observer, lowest_and_step, number_beside, remove

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch.fx import GraphModule, Node

_aten = torch.ops.aten
_LOGARITHMS = (_aten.log.default, _aten.log2.default, _aten.log10.default, _aten.log1p.default)
_STEEPEST_ROOT = 0.5
"""Powers with smaller exponents are as steep near zero as logarithms are."""
_MOVING = (
    *(*SHAPES, _aten._unsafe_view.default, _aten.clone.default, _aten.flatten.using_ints, _aten.permute.default),
    *(_aten.select.int, _aten.slice.Tensor, _aten.squeeze.dim, _aten.t.default, _aten.transpose.int),
)
_COMPUTING = (
    *SUMS,
    *(_aten.abs.default, _aten.add.Tensor, _aten.add.Scalar, _aten.amax.default, _aten.clamp.default),
    *(_aten.clamp_min.default, _aten.div.Tensor, _aten.exp.default, _aten.maximum.default, _aten.mean.default),
    *(_aten.mul.Scalar, _aten.mul.Tensor, _aten.neg.default, _aten.pow.Tensor_Scalar, _aten.rsub.Scalar),
    *(_aten.square.default, _aten.sub.Tensor, _aten.sum.default, _aten.tanh.default, *_MOVING),
)
"""Operators without weights that arguments are computed with."""
_PRODUCTS = (_aten.linear.default, _aten.matmul.default, _aten.mm.default, _aten.bmm.default)


def keep_logarithms_in_float(calibrated: GraphModule) -> None:
    """Remove observers around arguments of logarithms and roots whose smallest values are less than a step.

    So are those of what such an argument is computed of, up to what something else reads as well, and up to the layers,
    whose results stay quantized, but for products of powers with a filter bank, as for mel spectra.
    """
    modules = dict(calibrated.named_modules(remove_duplicate=False))
    for node in list(calibrated.graph.nodes):
        if _is_steep(node) and _is_lost(node, calibrated, modules):
            remove(_leading_to(node.args[0], modules), calibrated)


def _is_steep(node: Node) -> bool:
    if node.target is not _aten.pow.Tensor_Scalar:
        return node.target in _LOGARITHMS
    exponent: Any = node.args[1]
    return isinstance(exponent, (int, float)) and exponent < _STEEPEST_ROOT


def _is_lost(node: Node, module: GraphModule, modules: Mapping[str, Any]) -> bool:
    """Whether the smallest value that `node` computes with is less than a step of an observer of its argument."""
    added = 1.0 if node.target is _aten.log1p.default else 0.0
    for observer, number in _direct(node.args[0], module, modules):
        lowest, step = lowest_and_step(modules[str(observer.target)])
        if step > max(lowest, number, 0.0) + added:
            return True
    return False


def _direct(argument: Any, module: GraphModule, modules: Mapping[str, Any]) -> Iterator[tuple[Node, float]]:
    """Observers of a logarithm's argument, and of what numbers are added to, with the largest of these numbers."""
    number, node = 0.0, argument
    while isinstance(node, torch.fx.Node):
        beside = number_beside(node, module)
        if is_observer(node, modules):
            yield node, number
        elif beside is not None:
            number = max(number, beside)
        elif node.target not in (*_MOVING, _aten.sqrt.default) and not _reads_computed(node, modules):
            return
        node = node.args[0]


def _leading_to(argument: Any, modules: Mapping[str, Any]) -> list[Node]:
    """Observers of all that `argument` is computed of, and nothing else is."""
    found, pending = dict[torch.fx.Node, None](), [argument]
    while pending:
        node = pending.pop()
        if not isinstance(node, torch.fx.Node) or node in found or len(node.users) != 1:
            continue
        if is_observer(node, modules):
            source = node.all_input_nodes[0]
            if source.op == "get_attr" or source.target in _COMPUTING or _is_filtered(node, modules):
                found[node] = None
                pending += source.all_input_nodes
        elif node.target in _COMPUTING or _reads_computed(node, modules):  # a product that a bound is fused with
            pending += node.all_input_nodes
    return list(found)


def _is_filtered(observer: Node, modules: Mapping[str, Any]) -> bool:
    """Whether `observer` sees a matrix product of computed numbers, such as powers, that is never negative."""
    lowest, _ = lowest_and_step(modules[str(observer.target)])
    return lowest >= 0 and _reads_computed(observer.all_input_nodes[0], modules)


def _reads_computed(product: Node, modules: Mapping[str, Any]) -> bool:
    sources = list(product.all_input_nodes) if product.target in _PRODUCTS else []
    for at, source in enumerate(sources):
        node = source
        while is_observer(node, modules) or node.target in _MOVING:
            node = node.all_input_nodes[0]
        sources[at] = node
    return any(source.target in _COMPUTING for source in sources)
