"""Ranges behind masks: wide enough that softmax leaves out what is masked, and no wider."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torchao.quantization.pt2e import FakeQuantizeBase, ObserverBase

from lowerdeck.graph.masks import IS_MASKED, behind_masks
from lowerdeck.quantization.ranges import constant_values, constants, observer_nodes

if TYPE_CHECKING:
    from torch.fx import GraphModule

_LEVELS = 256
"""Of a softmax with 8 bits: weights below half of a level are zero."""
_Observe = Callable[[torch.Tensor], Any]


def narrow_masked_ranges(prepared: GraphModule) -> None:
    """Let observers behind masks see the scores, and what is masked just so far below that its weights are zero.

    A mask that is added has to reach from the largest score to below the smallest, which the observers of scores know.

    Args:
        prepared: A prepared model, before calibration; observers of quantization-aware training stay as they are.
    """
    behind = behind_masks(prepared)
    if not behind:
        return
    modules, fixed = dict(prepared.named_modules(remove_duplicate=False)), constants(prepared)
    observers = {
        node: modules[node.target]
        for node in observer_nodes(prepared)
        if isinstance(modules[node.target], ObserverBase) and not isinstance(modules[node.target], FakeQuantizeBase)
    }
    observe: dict[Any, _Observe] = {observer: observer.forward for observer in observers.values()}
    seen_by: dict[Any, list[_Observe]] = {}
    values = constant_values(prepared)
    for node in [each for each in prepared.graph.nodes if each in behind and each not in observers]:
        masks = [each for each in node.all_input_nodes if each in behind & fixed & observers.keys()]
        scores = [each for each in node.all_input_nodes if each in observers.keys() - fixed]
        for mask in masks if scores else ():
            if observers[mask] is observers[scores[0]]:
                continue
            is_added = node.target == torch.ops.aten.add.Tensor
            fill = _fill(values[mask], observe[observers[mask]], is_added=is_added)
            seen_by.setdefault(observers[scores[0]], []).append(fill)
            observers[mask].forward = _unchanged
    for observer in {observers[node] for node in observers if node in behind} | seen_by.keys():
        if observer.forward is not _unchanged:
            observer.forward = _observing(observe[observer], seen_by.get(observer, []))


def _observing(observe: _Observe, others: list[_Observe]) -> Callable[[torch.Tensor], torch.Tensor]:
    def forward(values: torch.Tensor) -> torch.Tensor:
        observe(_bounded(values))
        for other in others:
            other(values)
        return values

    return forward


def _fill(mask: torch.Tensor, observe: _Observe, *, is_added: bool) -> _Observe:
    """Lets the observer of `mask` see it as far below the scores as it has to be."""
    lowest, highest = math.inf, -math.inf

    def forward(scores: torch.Tensor) -> None:
        nonlocal lowest, highest
        kept = scores[scores > IS_MASKED]
        if kept.numel():
            lowest, highest = min(lowest, float(kept.min())), max(highest, float(kept.max()))
            floor = (lowest - highest if is_added else lowest) - _margin(scores)
            observe(torch.where(mask < IS_MASKED, floor, mask))

    return forward


def _unchanged(values: torch.Tensor) -> torch.Tensor:
    return values


def _bounded(values: torch.Tensor) -> torch.Tensor:
    masked = values < IS_MASKED
    if not bool(masked.any()):
        return values
    kept = values[~masked]
    floor = float(kept.min()) - _margin(values) if kept.numel() else 0.0
    return torch.where(masked, floor, values)


def _margin(scores: torch.Tensor) -> float:
    """How far below the smallest score all of a row that is masked has less than one level of the softmax.

    In a row of n scores, all of them together weigh at most n exp(-margin) times the largest.
    """
    return math.log(_LEVELS * max(scores.shape, default=1))
