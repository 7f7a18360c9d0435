"""What `target.device`, `target.options` and `flavor.options` may hold for Neutron.

docs/neutron.md says what each option was found to do.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from lowerdeck.delegation.exclusion import Exclusion

CHECK = "target.options.check_op_support"


@dataclass(frozen=True, kw_only=True)
class Device:
    """The NPU."""

    target: Literal["imxrt700"]
    """NPU as NXP's converter names it. ExecuTorch's backend supports Neutron-C with N3 hardware, which is this one."""


@dataclass(frozen=True, kw_only=True)
class Options(Exclusion):
    """Partitioner and compile spec. A node that is kept on the CPU keeps its quantize/dequantize cluster there."""

    use_neutron_for_format_conversion: bool = True
    """Let the NPU transpose between channels-first and channels-last, instead of operators on the CPU around it."""
    allow_no_op_partitions: bool = False
    """Delegate partitions that consist of operators without effect on the NPU; the converter may refuse them."""
    preserve_ops: list[str] = field(default_factory=lambda: ["aten::prelu", "aten::pad", "aten::hardswish"])
    """ATen operators that are converted whole where the backend supports their arguments, and not decomposed first."""
    check_op_support: str | None = None
    """A function of your own that has a say in this, by its import path `package.module:function`: called with each
    node (torch.fx.Node) of `preserve_ops`, it returns whether the node is kept whole."""
    quantized_inputs: bool = False
    """Whether the program takes integers, without a quantization on the CPU at its start."""
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


@dataclass(frozen=True, kw_only=True)
class FlavorOptions:
    """Which converter package is called, and in which Python environment; see docs/flavors.md."""

    module: str | None = None
    """Package to import, e.g. `neutron_converter_SDK_25_09`; null for `eiq_neutron_sdk` with that converter."""
    python: str | None = None
    """Interpreter of the environment that has the package, e.g. `~/envs/sdk-3.1.3/bin/python`; relative paths begin at
    the project. Null for this environment."""
    sys_path: list[str] = field(default_factory=list)
    """Folders that the interpreter searches for modules first, for a package that is unpacked and not installed."""
