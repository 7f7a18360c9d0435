"""The schemas of `target.device` and `target.options` for XNNPACK; docs/xnnpack.md has the effects of each option."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from lowerdeck.backends.xnnpack.operator_configs import AdditionalConfig, AnyConfig, DefaultConfig
from lowerdeck.delegation.exclusion import Exclusion

Precision = Literal["FP32", "STATIC_QUANT", "DYNAMIC_QUANT"]


@dataclass(frozen=True, kw_only=True)
class Device:
    """No properties: XNNPACK selects its kernels for the CPU when it loads the program."""


@dataclass(frozen=True, kw_only=True)
class Options(Exclusion):
    """Arguments of XnnpackPartitioner. An excluded activation also keeps the quantized operator that it is fused with
    on the CPU."""

    configs: list[AnyConfig] | None = None
    """Class names of the operator configs to delegate with, e.g. [ConvolutionConfig, LinearConfig]; null for
    ExecuTorch's defaults."""
    excluded_configs: list[DefaultConfig] = field(default_factory=list)
    """Default operator configs to omit, e.g. [SoftmaxConfig]. Without LinearConfig a linear layer is decomposed and
    delegated by AddmmConfig or MMConfig: omit all three to keep it on the CPU."""
    additional_configs: list[AdditionalConfig] = field(default_factory=list)
    """Operator configs to add to the default ones, which lack them."""
    config_precisions: list[Precision] | None = None
    """Precisions to delegate: `FP32` (float16 too), `STATIC_QUANT`, `DYNAMIC_QUANT`; null for all. Convolutions and
    linear layers are delegated in any precision unless none is left."""
    per_op_mode: bool = False
    """One delegate call per operator: less memory, slightly more time."""
    verbose: bool = False
    """Print what ExecuTorch's XNNPACK modules log while lowering: each node visited or refused, and why."""
    force_non_static_weights_for_f32_linear: bool = False
    """Pass weights and biases of float linear layers to the delegate as inputs, instead of packing them into it."""
    enable_bf16: bool = False
    """Delegate linear layers in bfloat16 too; otherwise they stay on the CPU."""
    quantized_inputs: bool = False
    """The program takes integers where the quantized model begins with a quantization."""
    quantized_outputs: bool = False
    """The program returns integers where the quantized model ends with a dequantization."""
