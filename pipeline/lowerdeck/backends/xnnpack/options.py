"""What `target.device` and `target.options` may hold for XNNPACK; docs/xnnpack.md says what each was found to do."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from lowerdeck.backends.xnnpack.operator_configs import AdditionalConfig, AnyConfig, DefaultConfig
from lowerdeck.delegation.exclusion import Exclusion

Precision = Literal["FP32", "STATIC_QUANT", "DYNAMIC_QUANT"]


@dataclass(frozen=True, kw_only=True)
class Device:
    """A CPU needs no description: XNNPACK chooses its kernels when the program is loaded."""


@dataclass(frozen=True, kw_only=True)
class Options(Exclusion):
    """Arguments of XnnpackPartitioner. A quantized operator stays on the CPU with an excluded activation that is fused
    into it."""

    configs: list[AnyConfig] | None = None
    """Operator configs to delegate with, by the names of their classes, e.g. [ConvolutionConfig, LinearConfig]; null
    for all that ExecuTorch uses by default."""
    excluded_configs: list[DefaultConfig] = field(default_factory=list)
    """Operator configs to leave out of the default ones, e.g. [SoftmaxConfig]. Without LinearConfig a linear layer is
    decomposed, and AddmmConfig or MMConfig take it: leave out all three to keep it on the CPU."""
    additional_configs: list[AdditionalConfig] = field(default_factory=list)
    """Operator configs that ExecuTorch has and does not use by default, to add to the default ones."""
    config_precisions: list[Precision] | None = None
    """Precisions to delegate: `FP32` (float16 too), `STATIC_QUANT`, `DYNAMIC_QUANT`; null for all. Convolutions and
    linear layers are delegated in whatever precision they have as long as one is left to them."""
    per_op_mode: bool = False
    """One delegate call for every operator: less memory for a little more time."""
    verbose: bool = False
    """Print what ExecuTorch's XNNPACK modules log while they lower: each node that is visited or refused, and why."""
    force_non_static_weights_for_f32_linear: bool = False
    """Give weights and biases of float linear layers to the delegate as inputs, instead of packing them into it."""
    enable_bf16: bool = False
    """Delegate linear layers in bfloat16 too; without it they stay on the CPU."""
    quantized_inputs: bool = False
    """The program takes integers where the quantized model begins with a quantization."""
    quantized_outputs: bool = False
    """The program gives integers where the quantized model ends with a dequantization."""
