"""The schemas of `target.device` and `target.options` for Ethos-U."""

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
    """How ExecuTorch's Arm backend rewrites operators (ArmPassPipelineConfig); null for its default."""

    softmax: Literal["MASKED", "STABLE"] | None = None
    """Softmax after subtracting the largest value; `MASKED` also decomposes masked_fill, so that it can be delegated.
    Ethos-U85 only; the others have `STABLE`."""
    quantize_inf: QuantizeInf | None = None
    """What infinities become before tensors are quantized. Null leaves them as they are: calibrate refuses a model that
    would quantize them."""


@dataclass(frozen=True, kw_only=True)
class Device:
    """The accelerator, and how models are rewritten for it before quantization."""

    accelerator: Accelerator
    """Vela's name of the NPU, with its MACs per cycle."""
    pass_pipeline: PassPipeline = field(default_factory=PassPipeline)
    """Rewriting of operators, which determines the observed and quantized tensors."""
    io_quantization: Literal["uint8", "int16"] | None = None
    """Integer type of the model's inputs and outputs, where it differs from the quantization scheme: `uint8` for camera
    images, `int16` for audio. Null for the type of the scheme."""


@dataclass(frozen=True, kw_only=True)
class ExternalBlocks:
    """Parts of partitions stored in data files next to the `.pte`; null embeds a part."""

    cmd_data: str | None = None
    """Tag of the file with the command streams."""
    weight_data: str | None = None
    """Tag of the file with the weights."""


@dataclass(frozen=True, kw_only=True)
class FlavorOptions:
    """Which Vela; docs/flavors.md has how to install several."""

    python: str | None = None
    """Interpreter of the environment that has it: absolute or below `~`, and opened by `plugins` in params.yaml,
    because it runs any code. Null for the Vela of this environment."""


@dataclass(frozen=True, kw_only=True)
class Options(Exclusion):
    """Options of the partitioner and of Vela."""

    system_config: str
    """Section `System_Config.NAME` of vela.ini, with the clock and the memories of the system around the NPU."""
    memory_mode: str
    """Section `Memory_Mode.NAME` of vela.ini, with the memories for weights, activations and commands."""
    vela_config: str | None = None
    """Path of your vela.ini, e.g. data/inputs/my_board.ini; null for Arm's, which comes with Vela."""
    extra_flags: list[str] = field(default_factory=list)
    """More flags for Vela, e.g. [`--optimise=Size`]; docs/ethos_u.md lists them."""
    external_block_placements: ExternalBlocks = field(default_factory=ExternalBlocks)
    """Parts of partitions stored in data files next to the `.pte`."""
    additional_checks: list[str] = field(default_factory=list)
    """Your checks that may refuse nodes: import paths `package.module:attribute` of classes or functions that return an
    OperatorSupportBase of torch.fx.passes.operator_support when called without arguments."""
    custom_partition_ops: list[str] = field(default_factory=list)
    """Operators to delegate that Arm's partitioner does not know: import paths of OpOverload objects. Importing their
    module must register their lowering with Arm's backend."""
    debug_info: Literal["JSON", "TOSA"] | None = None
    """Record the origin of every TOSA operator in the model: in a JSON report, or inside the stored TOSA graph."""
    quantized_inputs: bool = False
    """Whether the program takes integers, without a quantization on the CPU at its start."""
    quantized_outputs: bool = False
    """Whether the program returns integers, without a dequantization on the CPU at its end."""
