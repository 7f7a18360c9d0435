"""Steps that are fine enough for tensors of small numbers: volts of an electrode, the factor of `x / 32768`.

Observers have a smallest step (`eps`, 2^-12 for NXP's and XNNPACK's quantizers, 2^-16 for Arm's with 8 bits), so that a
tensor of zeros has one, too. A range below 256 of these steps is left with few integers, or with zero alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from lowerdeck.quantization.ranges import constant_values, observer_nodes

if TYPE_CHECKING:
    from torch.fx import GraphModule

_LEAST_GIVEN = 2.0**-30
"""Smallest step of inputs, weights and constants: below it are zeros that were meant to be, of pruned channels."""
_LEAST_COMPUTED = 2.0**-20
"""Smallest step of what is computed: XNNPACK takes no layer whose step is below 1/256 of its products', as that of one
whose results are zeros but for rounding."""
_MOST_INTEGERS = 255
"""With 16 bits, Arm's quantizer takes a step of 2^-12 for every range below 16, which its tables need."""
_MARGIN = 16
"""Observers choose narrower ranges than the values that they saw."""


def refine_small_steps(prepared: GraphModule, seen: Mapping[Any, Any] | None = None) -> None:
    """Lower the smallest step of observers whose range needs a smaller one.

    Args:
        prepared: A calibrated model.
        seen: In quantization-aware training, what observed the range of a fake quantizer in place of its own observer.
    """
    modules = dict(prepared.named_modules(remove_duplicate=False))
    stored = constant_values(prepared)
    for node in observer_nodes(prepared):
        module, source = modules[node.target], node.args[0]
        observer: Any = getattr(module, "activation_post_process", module)
        if not isinstance(getattr(observer, "eps", None), torch.Tensor):
            continue
        given = source in stored or source.op == "placeholder"
        steps = _needed_steps((seen or {}).get(module, observer))
        needed = steps[steps >= (_LEAST_GIVEN if given else _LEAST_COMPUTED)]
        if needed.numel() and needed.min() < observer.eps:
            observer.eps = torch.full_like(observer.eps, float(needed.min()) / _MARGIN)


def _needed_steps(observer: Any) -> torch.Tensor:
    """The range that an observer saw in each channel, or altogether, divided by the integers that it needs; [n]."""
    seen = [getattr(observer, name, torch.zeros(0)).detach().flatten() for name in ("min_val", "max_val")]
    lowest, highest = (each.clamp(max=0) for each in (seen[0], -seen[1]))
    is_symmetric = observer.qscheme in (torch.per_tensor_symmetric, torch.per_channel_symmetric)
    width = -2 * torch.minimum(lowest, highest) if is_symmetric else -lowest - highest
    steps: torch.Tensor = width / min(observer.quant_max - observer.quant_min, _MOST_INTEGERS)
    return steps
