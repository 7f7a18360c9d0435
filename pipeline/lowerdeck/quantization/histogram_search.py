"""The range of a histogram, found as torchao finds it, without a tensor for each comparison."""

from __future__ import annotations

import operator
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from functools import cache
from itertools import accumulate
from typing import Any

import numpy as np
import torch

_STEP = 1e-5
"""Share of the values that one step of torchao's search leaves out."""


def searched_range(observer: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """What HistogramObserver._non_linear_param_search finds: the smallest and the largest value of the best range.

    torchao searches in up to 100,000 steps, with a tensor for each comparison: half a second or more where nearly all
    values are in few bins, and minutes for a network with hundreds of such tensors. Here steps that leave out no bin
    are skipped, and each of the others is a bisection.
    """
    width = (observer.max_val - observer.min_val) / observer.bins
    total, sums = torch.sum(observer.histogram).item(), torch.cumsum(observer.histogram, dim=0).tolist()
    alphas, betas = _shares()
    alpha, beta, start, end, least = 0, 0, 0, observer.bins - 1, float("inf")
    while alphas[alpha] < betas[beta]:
        left = bisect_left(sums, _rounded(alphas[alpha + 1] * total), start, end)
        right = max(start, bisect_right(sums, _rounded(betas[beta + 1] * total), start, end + 1) - 1)
        if (left, right) == (start, end):
            last = sums[end]
            beta = bisect_left(betas, True, beta + 2, key=lambda share: _rounded(share * total) < last) - 1
            continue
        if left - start > end - right:
            alpha, moved = alpha + 1, (left, end)
        else:
            beta, moved = beta + 1, (start, right)
        error = observer._compute_quantization_error(*moved)
        if error > least:
            break
        least, (start, end) = error, moved
    return observer.min_val + width * start, observer.min_val + width * (end + 1)


def _rounded(value: float) -> float:
    """As PyTorch rounds a number that it compares with a float32 tensor."""
    return float(np.float32(value))


@cache
def _shares() -> tuple[list[float], list[float]]:
    """The shares of the values below and above which torchao's search leaves out all, by step; added up as it does."""
    steps = [_STEP] * (round(1 / _STEP) + 2)
    return list(accumulate(steps, initial=0.0)), list(accumulate(steps, operator.sub, initial=1.0))


def searched_once(search: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """`search(observer)` of a histogram for its range, made once for each histogram."""
    found: dict[tuple[object, ...], Any] = {}

    def remembered(observer: Any) -> Any:
        content = (observer.histogram, observer.min_val, observer.max_val)
        key = observer, *(part.detach().cpu().numpy().tobytes() for part in content)
        if key not in found:
            found[key] = search(observer)
        return found[key]

    return remembered
