"""Observers that can be chosen under `quantization`, by name, and their torchao classes.

torchao 0.18 has no percentile observer for PT2E, so none is offered. This module imports torch only to build an
observer, because compose checks names and options.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from lowerdeck.contracts.quantization import ObserverChoice

if TYPE_CHECKING:
    from torchao.quantization.pt2e.quantizer import QuantizationSpec

BACKEND_DEFAULT = "backend_default"


@dataclass(frozen=True, kw_only=True)
class BackendDefault:
    """The observer that the backend's quantizer chooses."""


@dataclass(frozen=True, kw_only=True)
class Histogram:
    """The range with the least squared quantization error, searched in a histogram of all values."""

    bins: Annotated[int, Field(ge=2, le=2**20)] = 2048
    """Number of bins."""


@dataclass(frozen=True, kw_only=True)
class MinMax:
    """The range from the smallest to the largest value."""


@dataclass(frozen=True, kw_only=True)
class MovingAverageMinMax:
    """Moving averages of the smallest and the largest value of each sample."""

    averaging_constant: Annotated[float, Field(gt=0.0, le=1.0)] = 0.01
    """Weight of a new sample in the average."""


ACTIVATION_OBSERVERS: Mapping[str, type] = {
    BACKEND_DEFAULT: BackendDefault,
    "histogram": Histogram,
    "min_max": MinMax,
    "moving_average_min_max": MovingAverageMinMax,
}
"""Kind -> its options."""
WEIGHT_OBSERVERS: Mapping[str, type] = {BACKEND_DEFAULT: BackendDefault, "histogram": Histogram, "min_max": MinMax}
"""A weight is observed once and does not change, so a moving average of its range is its range."""
PER_TENSOR_ONLY = ("histogram",)
"""Kinds that torchao lacks per channel."""


def observed_by(spec: QuantizationSpec, choice: ObserverChoice) -> QuantizationSpec:
    """`spec` with the observer of `choice` instead of the backend's.

    The smallest scale (`eps`) stays the backend's; `refine_small_steps` lowers it where a range needs that. So does the
    observer where torchao has none of the choice per channel, as Neutron quantizes weights that the model computes.
    """
    import dataclasses

    import torch
    from torchao.quantization.pt2e import observer

    per_channel = spec.qscheme in (torch.per_channel_symmetric, torch.per_channel_affine)
    classes: dict[tuple[str, bool], Any] = {
        ("histogram", False): observer.HistogramObserver,
        ("min_max", False): observer.MinMaxObserver,
        ("min_max", True): observer.PerChannelMinMaxObserver,
        ("moving_average_min_max", False): observer.MovingAverageMinMaxObserver,
    }
    partial = getattr(spec.observer_or_fake_quant_ctr, "p", None)
    eps = {name: value for name, value in (partial.keywords if partial else {}).items() if name == "eps"}
    if (choice.kind, per_channel) not in classes:  # not of a constant, which compose refuses
        return spec
    chosen = classes[choice.kind, per_channel].with_args(**eps, **choice.options)
    return dataclasses.replace(spec, observer_or_fake_quant_ctr=chosen)
