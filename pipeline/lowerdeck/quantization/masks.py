"""Ranges behind masks: wide enough that softmax leaves out what is masked, and no wider."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torchao.quantization.pt2e import FakeQuantizeBase, ObserverBase

from lowerdeck.graph.masked_scores import IS_MASKED, MASKED, behind_masks
from lowerdeck.quantization.ranges import constant_values, constants, observer_nodes

if TYPE_CHECKING:
    from torch.fx import GraphModule, Node

_LEVELS = 256
"""Of a softmax with 8 bits: weights below half of a level are zero."""
Observe = Callable[[torch.Tensor], Any]


def narrow_masked_ranges(prepared: GraphModule) -> None:
    """Let observers behind masks see the scores, and what is masked just so far below that its weights are zero.

    A mask that is added, and what it is computed of, has to reach from the largest score to below the smallest, which
    the observers of scores know.

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
    seen_by: dict[Any, list[Observe]] = {observers[node]: [] for node in observers if node in behind}
    values, masks = constant_values(prepared), set[Any]()
    for node in [each for each in prepared.graph.nodes if each in behind and each not in observers]:
        is_added = node.target == torch.ops.aten.add.Tensor
        operands = [each for each in node.all_input_nodes if each in observers]
        for mask in [each for each in operands if each in behind]:
            scores = [observers[each] for each in operands if each not in fixed and observers[each] != observers[mask]]
            if mask in fixed and scores:
                seen_by.setdefault(scores[0], []).append(_fill(values[mask], [observers[mask]], is_added=is_added))
                masks.add(observers[mask])
            elif is_added and scores:
                parts = dict.fromkeys(observers[each] for each in _above(mask, behind) if each in observers)
                seen_by.setdefault(scores[0], []).append(_fill(torch.tensor(MASKED), [*parts], is_added=True))
    for observer, others in seen_by.items():
        let_observe(observer, _nothing if observer in masks else _bounded, others)


def let_observe(observer: Any, seen: Callable[[torch.Tensor], torch.Tensor], others: Sequence[Observe]) -> None:
    """Let `observer` see `seen(values)`, and others the values, which it hands on as they are."""
    given: list[torch.Tensor] = []

    def before(_: Any, arguments: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
        given.append(arguments[0])
        for other in others:
            other(arguments[0])
        return (seen(arguments[0]),)

    observer.register_forward_pre_hook(before)
    # Of several, the first to change what is seen is the last to hand on: it knows the values.
    observer.register_forward_hook(lambda *_: given.pop(), prepend=True)


def _nothing(values: torch.Tensor) -> torch.Tensor:
    """Observers skip tensors without elements."""
    return values.new_empty(0)


def _above(node: Node, behind: set[Node]) -> set[Node]:
    """`node` and those of `behind` that it is computed of."""
    found, waiting = set[Any](), [node]
    while waiting:
        each = waiting.pop()
        if each not in found:
            found.add(each)
            waiting.extend(behind.intersection(each.all_input_nodes))
    return found


def _fill(mask: torch.Tensor, observers: Sequence[Any], *, is_added: bool) -> Observe:
    """Lets `observers` see `mask` as far below the scores as it has to be."""
    lowest, highest = math.inf, -math.inf

    def forward(scores: torch.Tensor) -> None:
        nonlocal lowest, highest
        kept = scores[scores > IS_MASKED]
        if kept.numel():
            lowest, highest = min(lowest, float(kept.min())), max(highest, float(kept.max()))
            floor = (lowest - highest if is_added else lowest) - _margin(scores)
            for observer in observers:
                observer.forward(torch.where(mask < IS_MASKED, floor, mask))

    return forward


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
