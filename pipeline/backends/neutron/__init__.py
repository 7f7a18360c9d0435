"""NXP eIQ Neutron: NeutronQuantizer -> NeutronPartitioner -> LiteRT -> converter. What configuration has to know."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from pipeline.backends.exclusion import Exclusion, is_operator_name
from pipeline.contracts import Backend, BackendDeclaration


@dataclass(frozen=True, kw_only=True)
class Device:
    """The NPU."""

    target: Literal["imxrt700"]
    """NPU as NXP's converter names it. ExecuTorch's backend supports Neutron-C with N3 hardware, which is this one."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Partitioner and compile spec."""

    operators_not_to_delegate: list[str] = field(default_factory=list)
    """Operators of the edge program that stay on the CPU, by their whole name: [`aten::add`] or [`aten.add`] for all
    overloads, [`aten.add.Tensor`] for one. An operator that shares a quantize/dequantize cluster stays there too."""
    modules_not_to_delegate: list[str] = field(default_factory=list)
    """Globs on paths of modules that stay on the CPU, e.g. [head, `layer3.*`]. A module is matched with everything in
    it."""
    nodes_not_to_delegate: list[str] = field(default_factory=list)
    """Globs on names of nodes that stay on the CPU, e.g. [`aten_add_tensor_*`]; build/partition/plan.json has them."""
    use_neutron_for_format_conversion: bool = True
    """Let the NPU transpose between channels-first and channels-last, instead of operators on the CPU around it."""
    allow_no_op_partitions: bool = False
    """Delegate partitions that consist of operators without effect on the NPU; the converter may refuse them."""
    preserve_ops: list[str] = field(default_factory=lambda: ["aten::prelu", "aten::pad", "aten::hardswish"])
    """ATen operators that are converted whole where the backend supports their arguments, and not decomposed first."""
    quantized_inputs: bool = False
    """Whether the program takes integers, without a quantization on the CPU at its begin."""
    quantized_outputs: bool = False
    """Whether the program gives integers, without a dequantization on the CPU at its end."""
    fetch_constants_to_sram: bool = False
    """Prefetch weights from flash, for models that do not fit into SRAM."""
    dump_kernel_selection_code: bool = False
    """Have the converter write which of its kernels the program needs, to build firmware with these alone."""
    use_profiling: bool = False
    """Have the NPU measure its kernels, and keep an ETRecord, by which ExecuTorch's Inspector knows them."""
    extra_flags: dict[str, Any] = field(default_factory=dict)
    """Further options of the converter by the names of its Python interface, e.g. {useSequencer: true}: attributes of
    CompilationContext.compilationOpts. ExecuTorch's own `extra_flags` reach no converter; these do, and a flavor that
    lacks one refuses it. They stand in the compile spec of the `.pte`."""


_OWN_OPTIONS = {
    "fetchConstantsToSRAM": "target.options.fetch_constants_to_sram",
    "dumpKernelSelectionCode": "target.options.dump_kernel_selection_code",
    "useProfiling": "target.options.use_profiling",
    "dumpAfterImport": "target.options.use_profiling, which sets it",
    "dumpAfterGenerate": "target.options.use_profiling, which sets it",
    "verbose": "target.options.use_profiling, which sets it",
}

_NOT_HERE = {
    "config": "is `target.device.target` here",
    "system_config": "is accepted by ExecuTorch and read by nothing; leave it out",
    "neutron_converter_flavor": "has become an option group: choose the converter with `flavor` in params.yaml",
    "converter_flavor": "has become an option group: choose the converter with `flavor` in params.yaml",
    "intermediates_dir": "cannot be set: what it would hold is always kept, in build/convert/twins and build/convert/"
    "reports, and its path would stand in the `.pte`",
    "post_quantization_state_dict": "cannot be set: the quantized program's own is always passed",
    "custom_delegation_options": "has no level of its own here: set its fields, e.g. allow_no_op_partitions",
}


def exclusion(options: Options) -> Exclusion:
    """What the options keep off the NPU."""
    return Exclusion(
        operators_not_to_delegate=options.operators_not_to_delegate,
        modules_not_to_delegate=options.modules_not_to_delegate,
        nodes_not_to_delegate=options.nodes_not_to_delegate,
    )


def check(device: Device, options: Options) -> Iterator[tuple[str, str]]:
    """Every combination of values is possible; single ones may be malformed, or have an option of their own."""
    for option, message in exclusion(options).problems():
        yield f"options.{option}", message
    for name in options.preserve_ops:
        if not is_operator_name(name):
            yield (
                "options.preserve_ops",
                f"{name!r} is no operator: write `aten::hardswish` or `aten.hardswish.default`",
            )
    for flag, value in options.extra_flags.items():
        if not isinstance(value, (bool, int, float, str)):
            yield "options.extra_flags", f"{flag} has to be true, false, a number or a string"
        elif flag in _OWN_OPTIONS:
            yield "options.extra_flags", f"{flag} has an option of its own: {_OWN_OPTIONS[flag]}"
        elif not flag.isidentifier():
            yield "options.extra_flags", f"{flag!r} is no name of an attribute, e.g. useSequencer"


def create(**arguments: Any) -> Backend:
    """The backend itself, which imports ExecuTorch."""
    from pipeline.backends.neutron.backend import Neutron

    return Neutron(**arguments)


DECLARATION = BackendDeclaration(
    device=Device,
    options=Options,
    # Convolutions are quantized per channel and linear layers per tensor; the quantizer offers no choice.
    schemes={"int8": ("backend_default",)},
    converters=("reference", "eiq_neutron_sdk"),
    check=check,
    create=create,
    delegation_options=(
        "operators_not_to_delegate",
        "modules_not_to_delegate",
        "nodes_not_to_delegate",
        "use_neutron_for_format_conversion",
        "allow_no_op_partitions",
        "quantized_inputs",
        "quantized_outputs",
        "fetch_constants_to_sram",
        "dump_kernel_selection_code",
        "use_profiling",
        "extra_flags",
    ),
    not_options=_NOT_HERE,
)
