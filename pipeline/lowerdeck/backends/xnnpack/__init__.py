"""XNNPACK on CPUs: XNNPACKQuantizer -> XnnpackPartitioner -> serializer. What configuration has to know.

docs/xnnpack.md tells what each option was found to do.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from lowerdeck.backends.xnnpack.operator_configs import AdditionalConfig, AnyConfig, DefaultConfig
from lowerdeck.contracts.backends import Backend, BackendDeclaration, BuildContext, FlavorReport
from lowerdeck.contracts.converter import Converter
from lowerdeck.delegation.exclusion import Exclusion

Precision = Literal["FP32", "STATIC_QUANT", "DYNAMIC_QUANT"]
_PRECISIONS_OF = {"float32": "FP32", "float16": "FP32", "int8": "STATIC_QUANT"}
"""Scheme -> what XnnpackPartitioner calls the precision of what it quantizes; of all others: DYNAMIC_QUANT."""


@dataclass(frozen=True, kw_only=True)
class Device:
    """A CPU needs no description: XNNPACK chooses its kernels when the program is loaded."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Arguments of XnnpackPartitioner, and what stays off the delegate."""

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
    operators_not_to_delegate: list[str] = field(default_factory=list)
    """Operators of the edge program that stay on the CPU, by their whole name: [`aten::add`] or [`aten.add`] for all
    overloads, [`aten.add.Tensor`] for one. A quantized operator whose fused activation stays there stays with it."""
    modules_not_to_delegate: list[str] = field(default_factory=list)
    """Globs on paths of modules that stay on the CPU, e.g. [head, `layer3.*`]. A module is matched with everything in
    it."""
    nodes_not_to_delegate: list[str] = field(default_factory=list)
    """Globs on names of nodes that stay on the CPU, e.g. [`aten_add_tensor_*`]; build/partition/plan.json has them."""


def exclusion(options: Options) -> Exclusion:
    """What the options keep off the delegate by name."""
    return Exclusion(
        operators_not_to_delegate=options.operators_not_to_delegate,
        modules_not_to_delegate=options.modules_not_to_delegate,
        nodes_not_to_delegate=options.nodes_not_to_delegate,
    )


def check(device: Device, options: Options) -> Iterator[tuple[str, str]]:
    """What ExecuTorch would take for something else, or refuse while lowering."""
    for name in ("configs", "config_precisions"):
        if getattr(options, name) == []:
            yield f"options.{name}", "an empty list would mean all of them to ExecuTorch; write null for all"
    for name in ("configs", "excluded_configs", "additional_configs", "config_precisions"):
        if repeated := _repeated(getattr(options, name) or ()):
            yield f"options.{name}", f"has {', '.join(repeated)} more than once"
    if options.configs is not None:
        if options.excluded_configs:
            yield "options.excluded_configs", "only leaves out of the default ones; shorten target.options.configs"
        if options.additional_configs:
            yield "options.additional_configs", "only adds to the default ones; write them into target.options.configs"
    for option, message in exclusion(options).problems():
        yield f"options.{option}", message


def check_build(device: Device, options: Options, build: BuildContext) -> Iterator[tuple[str, str]]:
    """Options that do not apply to the chosen quantization, and what the runtime would get wrong."""
    scheme, mixed = build.scheme.name, bool(build.scheme.rules)
    precision = _PRECISIONS_OF.get(scheme, "DYNAMIC_QUANT")
    if options.config_precisions is not None and not mixed and not {precision, "FP32"} & {*options.config_precisions}:
        yield (
            "target.options.config_precisions",
            f"has neither FP32 nor what quantization {scheme} leads to, {precision}: nothing of the model has these",
        )
    if options.enable_bf16 and scheme == "float16":
        yield "target.options.enable_bf16", "has no effect: quantization float16 leaves nothing in bfloat16"
    if options.force_non_static_weights_for_f32_linear and scheme in ("int8", "int8_dynamic") and not mixed:
        yield (
            "target.options.force_non_static_weights_for_f32_linear",
            f"has no effect: quantization {scheme} leaves no linear layer float; quantization.keep_float excepts some",
        )
    if build.dynamic_dimensions and build.memory_format == "channels_last":
        yield (
            "model.memory_format",
            "cannot go with model.dynamic_shapes: ExecuTorch's runtime permutes the sizes of some delegates' outputs",
        )
    for name in ("quantized_inputs", "quantized_outputs"):
        if getattr(options, name) and scheme != "int8":
            yield (
                f"target.options.{name}",
                f"needs activations with ranges fixed before, as quantization int8 gives them, and not {scheme}",
            )


def _repeated(names: Sequence[str]) -> list[str]:
    return [name for name in dict.fromkeys(names) if names.count(name) > 1]


def create(**arguments: Any) -> Backend:
    """The backend itself, which imports ExecuTorch."""
    from lowerdeck.backends.xnnpack.backend import Xnnpack

    return Xnnpack(**arguments)


def probe_flavor(**flavor: Any) -> FlavorReport:
    """The installed serializer; see contracts.backends.BackendDeclaration."""
    version = importlib.metadata.version("executorch")
    converter = Converter(flavor=flavor["flavor"], name="executorch-xnnpack", version=version)
    return FlavorReport(converter=converter, targets=("cpu",))


_OF_LINEAR_LAYERS = ("force_non_static_weights_for_f32_linear", "enable_bf16")
DECLARATION = BackendDeclaration(
    device=Device,
    options=Options,
    schemes={
        "int8": ("backend_default", "per_channel", "per_tensor"),
        # XNNPACK delegates no linear layer with activations quantized as they arise and one scale a weight tensor.
        "int8_dynamic": ("backend_default", "per_channel"),
        "int8_dynamic_int4_weight": ("per_group",),
        "float16": ("backend_default",),
        "float32": ("backend_default",),
    },
    mixed_schemes={"int8": ("int8", "int8_dynamic"), "int8_dynamic": ("int8", "int8_dynamic")},
    group_size_multiple=32,  # of XNNPACK's kernels; its serializer checks it last of all
    trainable=("int8",),
    converters=("xnnpack_serializer",),
    check=check,
    check_build=check_build,
    supports_dynamic_shapes=True,
    create=create,
    probe_flavor=probe_flavor,
    delegation_options=tuple(option.name for option in fields(Options) if option.name not in _OF_LINEAR_LAYERS),
    decomposition_options=(
        "configs",
        "excluded_configs",
        "additional_configs",
        "config_precisions",
        "operators_not_to_delegate",
        "modules_not_to_delegate",
    ),
)
