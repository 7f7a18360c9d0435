"""NXP eIQ Neutron: NeutronQuantizer -> NeutronPartitioner -> LiteRT -> converter. What configuration has to know."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from pipeline.backends.exclusion import Exclusion
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
    fetch_constants_to_sram: bool = False
    """Prefetch weights from flash, for models that do not fit into SRAM."""
    allow_no_op_partitions: bool = False
    """Delegate partitions that consist of operators without effect on the NPU; the converter may refuse them."""


def exclusion(options: Options) -> Exclusion:
    """What the options keep off the NPU."""
    return Exclusion(
        operators_not_to_delegate=options.operators_not_to_delegate,
        modules_not_to_delegate=options.modules_not_to_delegate,
        nodes_not_to_delegate=options.nodes_not_to_delegate,
    )


def check(device: Device, options: Options) -> Iterator[tuple[str, str]]:
    """Every combination of values is possible; single ones may be malformed."""
    for option, message in exclusion(options).problems():
        yield f"options.{option}", message


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
        "fetch_constants_to_sram",
        "allow_no_op_partitions",
    ),
)
