"""Divisors that a model keeps away from zero stay in float: their smallest values would be quantized to zero.

`x / (x.norm() + 1e-5)`, torch.nn.functional.normalize and others would compute 0 / 0 where x is zero, which is not a
number, and every device makes another integer of it. Where a division is a product with a reciprocal, as on Ethos-U,
one such value widens the reciprocal's range so far that all others become zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torchao.quantization.pt2e import FakeQuantizeBase, ObserverBase

if TYPE_CHECKING:
    from torch.fx import GraphModule, Node

_aten = torch.ops.aten
_KEEPING_AWAY = (_aten.add.Tensor, _aten.clamp.default, _aten.clamp_min.default, _aten.maximum.default)
_PRODUCTS = (_aten.mul.Tensor, _aten.mul.Scalar)
_RECIPROCALS = (_aten.reciprocal.default, _aten.rsqrt.default)
_SHAPES = (
    _aten.expand.default,
    _aten.expand_as.default,
    _aten.reshape.default,
    _aten.unsqueeze.default,
    _aten.view.default,
)
_BEHIND = (*_SHAPES, _aten.pow.Tensor_Scalar, _aten.sqrt.default)
_MAX_STEPS = 12
"""Most nodes, observers among them, between a number that keeps away from zero and the division."""
_STEPS = 255
"""Quantization steps of an int8 range: of a wider one, the smallest values are less than a step."""
_IsObserver = Callable[["Node"], bool]


def keep_divisors_in_float(prepared: GraphModule) -> None:
    """Remove observers from the number that keeps a divisor away from zero to the division, of a prepared model."""
    is_observer = _observers_in(prepared)
    for division in prepared.graph.find_nodes(op="call_function", target=_aten.div.Tensor):
        _remove(_above(division.args[1], is_observer), prepared)


def keep_wide_reciprocals_in_float(calibrated: GraphModule) -> None:
    """Remove observers around reciprocals whose recorded range is too wide for 8 bits, of a calibrated model."""
    is_observer, modules = _observers_in(calibrated), dict(calibrated.named_modules(remove_duplicate=False))
    for operator in _RECIPROCALS:
        for node in calibrated.graph.find_nodes(op="call_function", target=operator):
            behind = list(_behind(node, is_observer))
            if any(_is_wide(modules[str(observer.target)]) for observer in behind):
                _remove([*behind, *_above(node.args[0], is_observer)], calibrated)


def _observers_in(module: GraphModule) -> _IsObserver:
    modules = dict(module.named_modules(remove_duplicate=False))

    def is_observer(node: Node) -> bool:
        return node.op == "call_module" and isinstance(modules[str(node.target)], (ObserverBase, FakeQuantizeBase))

    return is_observer


def _is_wide(observer: Any) -> bool:
    recorded = getattr(observer, "activation_post_process", observer)
    smallest, largest = (getattr(recorded, name, torch.zeros(1)) for name in ("min_val", "max_val"))
    return smallest.numel() == 1 and bool((smallest > 0) & (largest > _STEPS * smallest))


def _above(divisor: Any, is_observer: _IsObserver) -> list[Node]:
    """Observers from `divisor` upwards to what keeps it away from zero; none where nothing does."""
    found, passed, node = list[torch.fx.Node](), list[torch.fx.Node](), divisor
    for _ in range(_MAX_STEPS):
        if not isinstance(node, torch.fx.Node) or len(node.users) != 1:
            break
        if is_observer(node):
            passed.append(node)
        elif node.target in _KEEPING_AWAY:
            numbers = [each for each in node.all_input_nodes[1:] if _is_constant(each)]
            constants = (each for number in numbers for each in (number, *_sources(number)))
            found, passed = [*found, *passed, *filter(is_observer, constants)], []
        elif node.target not in _BEHIND:
            break
        node = node.args[0]
    return found


def _behind(node: Node, is_observer: _IsObserver) -> Iterator[Node]:
    for user in node.users:
        if is_observer(user):
            yield user
        if is_observer(user) or user.target in _SHAPES or _is_multiple(user):
            yield from _behind(user, is_observer)


def _is_multiple(node: Node) -> bool:
    """Whether `node` is a product with a number, as in `1 / x`, which PyTorch writes as `x.reciprocal() * 1`."""
    return node.target in _PRODUCTS and sum(not _is_constant(each) for each in node.all_input_nodes) == 1


def _is_constant(node: Node) -> bool:
    return all(source.op != "placeholder" for source in (node, *_sources(node)))


def _sources(node: Node) -> Iterator[Node]:
    for source in node.all_input_nodes:
        yield source
        yield from _sources(source)


def _remove(observers: Iterable[Node], module: GraphModule) -> None:
    for observer in dict.fromkeys(observers):
        observer.replace_all_uses_with(observer.all_input_nodes[0])
        module.graph.erase_node(observer)
    module.recompile()
