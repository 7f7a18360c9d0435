"""Arm Ethos-U: EthosUQuantizer -> EthosUPartitioner -> TOSA -> Vela. What configuration has to know of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from pipeline.contracts import Backend, BackendDeclaration

Accelerator = Literal[
    "ethos-u55-32",
    "ethos-u55-64",
    "ethos-u55-128",
    "ethos-u55-256",
    "ethos-u65-256",
    "ethos-u65-512",
    "ethos-u85-128",
    "ethos-u85-256",
    "ethos-u85-512",
    "ethos-u85-1024",
    "ethos-u85-2048",
]
# Sections of Arm/vela.ini, which comes with ethos-u-vela 5.1.0. Vela accepts a system of another family without a word,
# so that its estimates would be of a machine that does not exist: `check` holds them together.
SystemConfig = Literal[
    "Ethos_U55_Deep_Embedded",
    "Ethos_U55_High_End_Embedded",
    "Ethos_U65_Embedded",
    "Ethos_U65_Mid_End",
    "Ethos_U65_High_End",
    "Ethos_U65_Client_Server",
    "Ethos_U85_SYS_Flash_Low",
    "Ethos_U85_SYS_Flash_High",
    "Ethos_U85_SYS_DRAM_Low",
    "Ethos_U85_SYS_DRAM_Mid",
    "Ethos_U85_SYS_DRAM_High",
]
MemoryMode = Literal[
    "Sram_Only", "Shared_Sram", "Dedicated_Sram", "Dedicated_Sram_256KB", "Dedicated_Sram_384KB", "Dedicated_Sram_512KB"
]


@dataclass(frozen=True, kw_only=True)
class Device:
    """The accelerator."""

    accelerator: Accelerator
    """NPU and its MACs a cycle, as Vela names it."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What Vela compiles for."""

    system_config: SystemConfig
    """Section of vela.ini that describes clock and memories of the system around the NPU."""
    memory_mode: MemoryMode
    """Section of vela.ini that says which memory holds weights, activations and the command stream."""


def check(device: Device, options: Options) -> Iterator[tuple[str, str]]:
    """What Vela would accept or reject late."""
    family = device.accelerator.removeprefix("ethos-").partition("-")[0].upper()
    if not options.system_config.startswith(f"Ethos_{family}_"):
        yield (
            "options.system_config",
            f"{options.system_config} describes another NPU than {device.accelerator}; choose one of Ethos_{family}_*",
        )
    if family == "U55" and options.memory_mode not in ("Sram_Only", "Shared_Sram"):
        yield (
            "options.memory_mode",
            f"{device.accelerator} has no {options.memory_mode}; choose Sram_Only or Shared_Sram",
        )


def create(**arguments: Any) -> Backend:
    """The backend itself, which imports ExecuTorch."""
    from pipeline.backends.ethos_u.backend import EthosU

    return EthosU(**arguments)


_GRANULARITIES = ("backend_default", "per_channel", "per_tensor")
DECLARATION = BackendDeclaration(
    device=Device,
    options=Options,
    schemes={"int8": _GRANULARITIES, "int16x8": _GRANULARITIES},
    mixes={"int8": ("int8", "int16x8"), "int16x8": ("int8", "int16x8")},
    converters=("vela",),
    check=check,
    create=create,
    delegation_options=("system_config", "memory_mode"),
)
