"""The schemas of `target.device`, `target.options` and `flavor.options` for Neutron; see docs/neutron.md."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from lowerdeck.delegation.exclusion import Exclusion

CHECK = "target.options.check_op_support"


@dataclass(frozen=True, kw_only=True)
class Device:
    """The NPU."""

    target: Literal["imxrt700"]
    """NXP's name of the NPU. ExecuTorch's backend supports only this one: Neutron-C with N3 hardware."""


@dataclass(frozen=True, kw_only=True)
class Options(Exclusion):
    """Partitioner and compile spec. An excluded node stays on the CPU with its quantize/dequantize cluster."""

    use_neutron_for_format_conversion: bool = True
    """Let the NPU transpose between channels-first and channels-last, instead of operators on the CPU around it."""
    allow_no_op_partitions: bool = False
    """Delegate partitions that contain only operators without effect on the NPU; the converter may refuse them."""
    preserve_ops: list[str] = field(default_factory=lambda: ["aten::prelu", "aten::pad", "aten::hardswish"])
    """ATen operators to preserve instead of decompose where the backend supports their arguments."""
    check_op_support: str | None = None
    """Import path `package.module:function` of your function that is called with each node (torch.fx.Node) of
    `preserve_ops` and returns whether to preserve it."""
    quantized_inputs: bool = False
    """Whether the program takes integers, without a quantization on the CPU at its start."""
    quantized_outputs: bool = False
    """Whether the program returns integers, without a dequantization on the CPU at its end."""
    fetch_constants_to_sram: bool = False
    """Prefetch weights from flash, for models that do not fit into SRAM."""
    dump_kernel_selection_code: bool = False
    """Let the converter list the kernels that the program needs, to build firmware with only these."""
    use_profiling: bool = False
    """Let the NPU measure its kernels, and store an ETRecord for ExecuTorch's Inspector."""
    extra_flags: dict[str, Any] = field(default_factory=dict)
    """Further converter options by their Python names, e.g. {useSequencer: true}: attributes of
    CompilationContext.compilationOpts. ExecuTorch's `extra_flags` do not reach the converter; these do, and a flavor
    refuses unknown ones. The compile spec in the `.pte` contains them."""


@dataclass(frozen=True, kw_only=True)
class FlavorOptions:
    """The converter package and its Python environment; see docs/flavors.md."""

    module: str | None = None
    """Package to import, e.g. `neutron_converter_SDK_25_09`; null for `eiq_neutron_sdk`. Others than NXP's have to be
    opened by `plugins` in params.yaml."""
    python: str | None = None
    """Interpreter of the package's environment, e.g. `~/envs/sdk-3.1.3/bin/python`: absolute or below `~`, and
    opened by `plugins` in params.yaml, because it runs any code. Null for this environment."""
    sys_path: list[str] = field(default_factory=list)
    """Folders that the interpreter searches for modules first, for a package that is unpacked, not installed; written
    and opened like `python`."""
