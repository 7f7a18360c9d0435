"""The schemas of `target.device` and `target.options` for Cortex-M; docs/cortex_m.md has the effects of each option."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from lowerdeck.delegation.exclusion import Exclusion

Isa = Literal["scalar", "dsp", "mve"]
ISAS: Mapping[str, Sequence[Isa]] = {
    **dict.fromkeys(("m0", "m0plus", "m3", "m23"), ("scalar",)),
    **dict.fromkeys(("m4", "m7", "m33", "m35p"), ("scalar", "dsp")),
    **dict.fromkeys(("m55", "m85"), ("scalar", "dsp", "mve")),
}
"""CPU -> instruction sets that it may have, the fastest last (beside ExecuTorch's CortexMTargetConfig)."""


@dataclass(frozen=True, kw_only=True)
class Device:
    """Arguments of CortexMTargetConfig and CortexMQuantizer."""

    cpu: Literal["m0", "m0plus", "m3", "m4", "m7", "m23", "m33", "m35p", "m55", "m85"]
    """The Cortex-M, e.g. `m55`."""
    isa: Isa | None = None
    """Instruction set that CMSIS-NN is built for, where the CPU lacks an optional one: `scalar`, `dsp` or `mve`; null
    for all that the CPU may have. It decides the size of scratch buffers, and how linear layers store their bias."""
    rounding: Literal["double", "single"] = "double"
    """How CMSIS-NN rounds where it rescales sums to int8: `double`, after the multiplication and after the shift, as
    ExecuTorch builds it; `single` if firmware builds it with CMSIS_NN_USE_SINGLE_ROUNDING. The `.pte` is the same."""
    use_explicit_layout: bool = False
    """Whether the program transposes to channels-last itself, by ExecuTorch's experimental operators `*_nhwc`. It then
    takes inputs with `model.memory_format: contiguous`, and refuses spatial operators that are not quantized."""


@dataclass(frozen=True, kw_only=True)
class Options(Exclusion):
    """What CMSIS-NN computes; options named `*_not_to_delegate` leave operators to portable kernels in float."""

    quantized_inputs: bool = False
    """Whether the program takes integers where the quantized model begins with a quantization."""
    quantized_outputs: bool = False
    """Whether the program returns integers where the quantized model ends with a dequantization."""
