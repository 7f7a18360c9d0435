"""What `target.device` and `target.options` may hold for Ethos-U."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from lowerdeck.delegation.exclusion import Exclusion

CHECKS, OPERATORS = "target.options.additional_checks", "target.options.custom_partition_ops"

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
    """Softmax with the largest value subtracted first; `MASKED` decomposes masked_fill as well, so that it can be
    delegated. Ethos-U85 only: the others have `STABLE`."""
    quantize_inf: QuantizeInf | None = None
    """What infinities become before tensors are quantized."""


@dataclass(frozen=True, kw_only=True)
class Device:
    """The accelerator, and how networks are rewritten for it before they are quantized."""

    accelerator: Accelerator
    """NPU and its MACs per cycle, as Vela names it."""
    pass_pipeline: PassPipeline = field(default_factory=PassPipeline)
    """Rewriting of operators, which decides what is observed and quantized."""
    io_quantization: Literal["uint8", "int16"] | None = None
    """Integers that stand for the model's inputs and outputs, where others than inside: `uint8` for camera images,
    `int16` for audio. Null for those of the quantization scheme."""


@dataclass(frozen=True, kw_only=True)
class ExternalBlocks:
    """Parts of partitions that are kept in data files beside the `.pte`; null keeps a part inside."""

    cmd_data: str | None = None
    """Tag of the file with the command streams."""
    weight_data: str | None = None
    """Tag of the file with the weights."""


@dataclass(frozen=True, kw_only=True)
class Options(Exclusion):
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
    additional_checks: list[str] = field(default_factory=list)
    """Checks of your own that may refuse nodes: import paths `package.module:attribute` of classes or functions that,
    called without arguments, make an OperatorSupportBase of torch.fx.passes.operator_support."""
    custom_partition_ops: list[str] = field(default_factory=list)
    """Operators that are delegated although Arm's partitioner does not know them: import paths of OpOverload objects.
    Importing their module has to teach Arm's backend how to lower them."""
    debug_info: Literal["JSON", "TOSA"] | None = None
    """Where every TOSA operator comes from in the model: as a JSON report, or inside the TOSA graph that is kept."""
    quantized_inputs: bool = False
    """Whether the program takes integers, without a quantization on the CPU at its start."""
    quantized_outputs: bool = False
    """Whether the program gives integers, without a dequantization on the CPU at its end."""
