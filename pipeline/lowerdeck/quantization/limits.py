"""Constants that limit nothing in some places: `torch.maximum(x, limits)`, or a clamp, with infinite limits.

Infinite numbers have no range. An integer below all of `x` limits as little: the observer of the limits sees `x` in
place of them, so that they are clipped to the end of its range.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torchao.quantization.pt2e import FakeQuantizeBase, ObserverBase

from lowerdeck.quantization.masks import let_observe
from lowerdeck.quantization.ranges import constant_values, observer_nodes

if TYPE_CHECKING:
    from torch.fx import GraphModule, Node

_aten = torch.ops.aten
_WITHOUT_EFFECT: dict[Any, tuple[float | None, ...]] = {
    _aten.maximum.default: (-math.inf, -math.inf),
    _aten.minimum.default: (math.inf, math.inf),
    _aten.clamp.Tensor: (None, -math.inf, math.inf),
}
"""The numbers that leave what is limited as it is, by the positions of limits."""


def observe_finite_limits(prepared: GraphModule) -> None:
    """Let observers of constants in front of a maximum, minimum or clamp see no infinite limit, but what is limited.

    Args:
        prepared: A prepared model, before calibration; observers of quantization-aware training stay as they are.
    """
    modules, values = dict(prepared.named_modules(remove_duplicate=False)), constant_values(prepared)
    observers: dict[Any, Any] = {
        node: modules[node.target]
        for node in observer_nodes(prepared)
        if isinstance(modules[node.target], ObserverBase) and not isinstance(modules[node.target], FakeQuantizeBase)
    }
    for limits, observer in observers.items():
        number, source = _without_effect(limits), limits.args[0]
        if source.target == _aten.full.default and not source.all_input_nodes:
            values[limits] = source.target(*source.args, **source.kwargs)
        limited = {observers.get(_limited(user, limits)) for user in limits.users}
        if number is None or limits not in values or None in limited:
            continue
        let_observe(observer, partial(_others, limits=values[limits], number=number), [])
        for each in limited.difference({observer}):
            let_observe(each, lambda seen: seen, [observer.forward])


def _without_effect(limits: Node) -> float | None:
    """The number that is no limit for any user of `limits`."""
    numbers = set()
    for user in limits.users:
        positions = zip(user.args, _WITHOUT_EFFECT.get(user.target, ()), strict=False)
        numbers |= {number for argument, number in positions if argument is limits} or {None}
    return numbers.pop() if len(numbers) == 1 else None


def _limited(user: Node, limits: Node) -> Any:
    return next((each for each in user.args if each is not limits), None)


def _others(seen: torch.Tensor, limits: torch.Tensor, number: float) -> torch.Tensor:
    """The finite ones of `limits`; one observer may see other tensors, too. It skips those without elements."""
    return seen[seen != number] if torch.equal(seen, limits) else seen
