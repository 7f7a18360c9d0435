"""Arm Ethos-U: EthosUQuantizer -> EthosUPartitioner -> TOSA -> Vela. What configuration has to know of it."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args

from pipeline.backends.ethos_u import vela_config, vela_flags
from pipeline.contracts import Backend, BackendDeclaration, Converter, FlavorReport, LowerdeckError

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


@dataclass(frozen=True, kw_only=True)
class QuantizeInf:
    """What infinities become before tensors are quantized."""

    neg_inf: float = -256.0
    """In place of negative infinity, e.g. in an attention mask."""
    pos_inf: float = 255.0
    """In place of positive infinity."""


@dataclass(frozen=True, kw_only=True)
class PassPipeline:
    """How ExecuTorch's Arm backend rewrites operators (its ArmPassPipelineConfig); null is its choice for the NPU."""

    softmax: Literal["MASKED", "STABLE"] | None = None
    """Softmax with the largest value subtracted first; `MASKED` takes masked_fill apart as well. Ethos-U85 only: the
    others have `STABLE`."""
    leaky_relu: Literal["TABLE", "DECOMPOSE"] | None = None
    """Leaky ReLU as one table, or as clamp, multiplication and addition."""
    quantize_inf: QuantizeInf | None = None
    """What infinities become before tensors are quantized."""
    sdpa_safe_softmax_guard: Literal["PRESERVE", "REMOVE", "REMOVE_WHEN_PROVEN"] | None = None
    """Whether attention keeps the guard for rows that are masked whole. `REMOVE_WHEN_PROVEN` is refused: ExecuTorch
    1.5.1 does the same as with `PRESERVE`."""


@dataclass(frozen=True, kw_only=True)
class Device:
    """The accelerator, and how networks are rewritten for it before they are quantized."""

    accelerator: Accelerator
    """NPU and its MACs a cycle, as Vela names it."""
    pass_pipeline: PassPipeline = field(default_factory=PassPipeline)
    """Rewriting of operators, which decides what is observed and quantized."""


@dataclass(frozen=True, kw_only=True)
class ExternalBlocks:
    """Parts of partitions that are kept in data files beside the `.pte`; null keeps a part inside."""

    cmd_data: str | None = None
    """Tag of the file with the command streams."""
    weight_data: str | None = None
    """Tag of the file with the weights."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What is delegated, and what Vela compiles for."""

    system_config: str
    """Section `System_Config.NAME` of vela.ini, which describes clock and memories of the system around the NPU."""
    memory_mode: str
    """Section `Memory_Mode.NAME` of vela.ini, which says what memory holds weights, activations and commands."""
    vela_config: str | None = None
    """Path of a vela.ini of your own, e.g. data/inputs/my_board.ini; null for Arm's, which comes with Vela."""
    extra_flags: list[str] = field(default_factory=list)
    """More flags for Vela, e.g. [`--optimise=Size`]; docs/ethos_u.md lists them."""
    external_block_placements: ExternalBlocks = field(default_factory=ExternalBlocks)
    """Parts of partitions that are kept in data files beside the `.pte`."""
    debug_info: Literal["JSON", "TOSA"] | None = None
    """Where every TOSA operator comes from in the model: as a JSON report, or inside the TOSA graph that is kept."""
    quantized_inputs: bool = False
    """Whether the program takes integers, without a quantization on the CPU at its begin."""
    quantized_outputs: bool = False
    """Whether the program gives integers, without a dequantization on the CPU at its end."""


def check(device: Device, options: Options) -> Iterator[tuple[str, str]]:
    """What Vela would accept or reject late, and what ExecuTorch would ignore."""
    family = device.accelerator.removeprefix("ethos-").partition("-")[0].upper()
    if device.pass_pipeline.softmax == "MASKED" and family != "U85":
        yield "device.pass_pipeline.softmax", f"an Ethos-{family} has STABLE only: ExecuTorch would drop the choice"
    if device.pass_pipeline.sdpa_safe_softmax_guard == "REMOVE_WHEN_PROVEN":
        message = "does the same as PRESERVE in ExecuTorch 1.5.1; choose PRESERVE or REMOVE"
        yield "device.pass_pipeline.sdpa_safe_softmax_guard", message
    config = vela_config.read(options.vela_config)
    for name, problem in vela_config.problems(config, options.system_config, options.memory_mode, family):
        yield f"options.{name}", problem
    for index, problem in vela_flags.problems(options.extra_flags, family):
        yield f"options.extra_flags.{index}", problem
    for part, tag in (
        ("cmd_data", options.external_block_placements.cmd_data),
        ("weight_data", options.external_block_placements.weight_data),
    ):
        if tag is not None and not re.fullmatch(r"[A-Za-z0-9_-]+", tag):
            message = "names a file: it may have letters, digits, _ and -"
            yield f"options.external_block_placements.{part}", message


def files(device: Device, options: Options) -> Iterator[Path]:
    """What configuration names and programs depend on."""
    if options.vela_config is not None:
        yield Path(options.vela_config)


def create(**arguments: Any) -> Backend:
    """The backend itself, which imports ExecuTorch."""
    from pipeline.backends.ethos_u.backend import EthosU

    return EthosU(**arguments)


def probe_flavor(**flavor: Any) -> FlavorReport:
    """The installed Vela; see contracts.BackendDeclaration."""
    try:
        version = importlib.metadata.version("ethos-u-vela")
    except importlib.metadata.PackageNotFoundError:
        raise LowerdeckError(
            "Vela (Python package ethos-u-vela) is not installed in this environment; `pip install "
            "'executorch[ethos-u]'` brings it"
        ) from None
    converter = Converter(flavor=flavor["flavor"], name="ethos-u-vela", version=version)
    return FlavorReport(converter=converter, targets=get_args(Accelerator))


_GRANULARITIES = ("backend_default", "per_channel", "per_tensor")
DECLARATION = BackendDeclaration(
    device=Device,
    options=Options,
    schemes={"int8": _GRANULARITIES, "int16x8": _GRANULARITIES},
    mixes={"int8": ("int8", "int16x8"), "int16x8": ("int8", "int16x8")},
    converters=("vela",),
    check=check,
    files=files,
    create=create,
    probe_flavor=probe_flavor,
    delegation_options=tuple(option.name for option in fields(Options)),
)
