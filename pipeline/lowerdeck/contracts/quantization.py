"""How a model is quantized, and the properties of its quantized tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


STATIC = ("int8", "int8x4", "int16x8")
"""Schemes that fix the ranges of activations in advance."""


@dataclass(frozen=True, kw_only=True)
class ObserverChoice:
    """How the range of a tensor is found; see quantization.activation_observer."""

    kind: str = "backend_default"
    """`histogram`, `min_max`, `moving_average_min_max` ..., or `backend_default`: the backend's own choice."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the observer's class, e.g. bins of a histogram."""


@dataclass(frozen=True, kw_only=True)
class ModuleRule:
    """Another scheme for a part of the model; the last rule that matches a module applies."""

    modules: tuple[str, ...] = ()
    """Globs on module paths, e.g. `layer3.*`; a match includes all submodules."""
    types: tuple[str, ...] = ()
    """Classes of modules, e.g. `torch.nn.Linear`."""
    scheme: str | None = None
    """Name of the scheme, None to keep these modules in float."""
    weight_granularity: str = "backend_default"


@dataclass(frozen=True, kw_only=True)
class QuantizationScheme:
    """How weights and activations are represented; see conf/quantization."""

    name: str
    """`int8` (static, PT2E), `int8x4`, `int8_dynamic`, `int8_dynamic_int4_weight`, `int16x8`, `float16` or `float32`
    (as is)."""
    weight_granularity: str = "backend_default"
    """`per_tensor`, `per_channel`, `per_group`, or `backend_default`: what the backend's vendor recommends."""
    group_size: int | None = None
    """Number of weights that share a scale, for `per_group`."""
    activation_observer: ObserverChoice = field(default_factory=ObserverChoice)
    weight_observer: ObserverChoice = field(default_factory=ObserverChoice)
    rules: tuple[ModuleRule, ...] = ()
    """Exceptions for parts of the model."""
    is_qat: bool = False
    """Whether the model is trained with fake quantization instead of only observed."""

    @property
    def is_quantized(self) -> bool:
        """Whether any tensor is stored as integers."""
        return self.name not in ("float32", "float16")

    @property
    def rebuilds_model(self) -> bool:
        """Whether quantize starts from the model itself instead of the exported program."""
        return self.name in ("float16", "int8_dynamic_int4_weight")

    @property
    def observes_samples(self) -> bool:
        """Whether ranges of activations are fixed in advance, which takes calibration samples."""
        return any(name in STATIC for name in (self.name, *(rule.scheme for rule in self.rules)))


@dataclass(frozen=True, kw_only=True)
class ObservedRange:
    """The values of a tensor before quantization."""

    minimum: float
    maximum: float
    num_values: int
    num_clipped: int
    """Number of values beyond the representable range by more than half a step."""
    sqnr_db: float | None = None
    """Signal-to-quantization-noise ratio of weights and biases; the stage baseline measures activations."""
    histogram: tuple[int, ...] = ()
    """Number of values in each of equal parts of the representable integers, clipped ones in the outermost."""

    @property
    def clipped_share(self) -> float:
        """`num_clipped` as a share of `num_values`."""
        return self.num_clipped / self.num_values


@dataclass(frozen=True, kw_only=True)
class ObserverState:
    """The result of calibration."""

    tensors: dict[str, torch.Tensor]
    """Every observer's buffers, `OBSERVER.BUFFER` -> tensor."""
    layout: str
    """SHA-256 over names and classes of the observers, in graph order: `tensors` fit the same layout only."""
    ranges: Mapping[str, ObservedRange] = field(default_factory=dict)
    """Observed ranges of activations, by observer; only for the report."""
    trained: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """Weights and biases changed by training, by name in the prepared model; empty without training."""


@dataclass(frozen=True, kw_only=True)
class QuantizedTensor:
    """One tensor of integers, as its dequantize node describes it."""

    name: str
    """The dequantize node."""
    source: str
    """Node or parameter that contains the integers."""
    dtype: str
    quant_min: int
    quant_max: int
    scales: tuple[float, ...]
    """One, one per channel, or one per group of each channel; empty where computed at run time."""
    zero_points: tuple[int, ...]
    axis: int | None
    """Channel axis; None for per-tensor quantization."""
    group_size: int | None = None
    """Number of values of a channel that share a scale; None where all of them do."""
    is_constant: bool = False
    """Whether it is a weight or bias."""
    node: str = ""
    """Node of the float program that computes the same tensor; empty for constants and where unknown."""
    module: str = ""
    """Path of the module that computes it, or uses it as a weight; empty where unknown."""
    observed: ObservedRange | None = None
    """The values before quantization; None where nothing was observed."""

    @property
    def representable(self) -> tuple[tuple[float, float], ...]:
        """Smallest and largest representable value, for each scale."""
        ends = zip(self.scales, self.zero_points, strict=True)
        return tuple((scale * (self.quant_min - zero), scale * (self.quant_max - zero)) for scale, zero in ends)
