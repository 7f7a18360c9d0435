"""Observers by name: what may be chosen under `quantization`, and the torchao class that each stands for.

torchao 0.18 has no percentile observer for PT2E, so none is offered. Nothing here imports torch until an observer is
built: compose checks names and options.
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
    """What the backend's quantizer chooses."""


@dataclass(frozen=True, kw_only=True)
class Histogram:
    """The range with the least squared quantization error, searched in a histogram of all values."""

    bins: Annotated[int, Field(ge=2, le=2**20)] = 2048
    """Bins of the histogram."""


@dataclass(frozen=True, kw_only=True)
class MinMax:
    """From the least to the largest value ever seen."""


@dataclass(frozen=True, kw_only=True)
class MovingAverageMinMax:
    """Moving averages of the least and the largest value of each sample."""

    averaging_constant: Annotated[float, Field(gt=0.0, le=1.0)] = 0.01
    """Share of a new sample in the average."""


ACTIVATION_OBSERVERS: Mapping[str, type] = {
    BACKEND_DEFAULT: BackendDefault,
    "histogram": Histogram,
    "min_max": MinMax,
    "moving_average_min_max": MovingAverageMinMax,
}
"""Kind -> its options."""
WEIGHT_OBSERVERS: Mapping[str, type] = {BACKEND_DEFAULT: BackendDefault, "histogram": Histogram, "min_max": MinMax}
"""A weight is seen once and does not change, so a moving average of its range is its range."""
PER_TENSOR_ONLY = ("histogram",)
"""Kinds that torchao does not have per channel."""


def observed_by(spec: QuantizationSpec, choice: ObserverChoice) -> QuantizationSpec:
    """`spec` with the observer of `choice` in place of the backend's own.

    The backend's other arguments stay: kernels may depend on the least scale (`eps`).
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
    kept = {name: value for name, value in (partial.keywords if partial else {}).items() if name == "eps"}
    chosen = classes[choice.kind, per_channel].with_args(**kept, **choice.options)
    return dataclasses.replace(spec, observer_or_fake_quant_ctr=chosen)
