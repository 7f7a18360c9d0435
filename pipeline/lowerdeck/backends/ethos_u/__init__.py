"""Arm Ethos-U: EthosUQuantizer -> EthosUPartitioner -> TOSA -> Vela. What configuration has to know of it."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args

from lowerdeck.backends.ethos_u import vela_config, vela_flags
from lowerdeck.contracts.backends import Backend, BackendDeclaration, BuildContext, FlavorReport
from lowerdeck.contracts.converter import Converter
from lowerdeck.contracts.errors import ConfigurationError, LowerdeckError
from lowerdeck.delegation.exclusion import Exclusion
from lowerdeck.registry import import_paths, signatures

OWN_PACKAGE = "lowerdeck.backends"
"""Package of the project whose code may be named by import path."""
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
    """Softmax with the largest value subtracted first; `MASKED` takes masked_fill apart as well, so that it can be
    delegated. Ethos-U85 only: the others have `STABLE`."""
    quantize_inf: QuantizeInf | None = None
    """What infinities become before tensors are quantized."""


@dataclass(frozen=True, kw_only=True)
class Device:
    """The accelerator, and how networks are rewritten for it before they are quantized."""

    accelerator: Accelerator
    """NPU and its MACs a cycle, as Vela names it."""
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
    operators_not_to_delegate: list[str] = field(default_factory=list)
    """Operators that stay on the CPU, by their whole name: [`aten::add`] or [`aten.add`] for all overloads,
    [`aten.add.Tensor`] for one."""
    modules_not_to_delegate: list[str] = field(default_factory=list)
    """Globs on paths of modules that stay on the CPU, e.g. [head, `layer3.*`]. A module is matched with everything in
    it."""
    nodes_not_to_delegate: list[str] = field(default_factory=list)
    """Globs on names of nodes that stay on the CPU, e.g. [`aten_add_tensor_*`]; build/partition/plan.json has them."""
    additional_checks: list[str] = field(default_factory=list)
    """Checks of your own that may refuse nodes: import paths `package.module:attribute` of classes or functions that,
    called without arguments, make an OperatorSupportBase of torch.fx.passes.operator_support."""
    custom_partition_ops: list[str] = field(default_factory=list)
    """Operators that are delegated although Arm's partitioner does not know them: import paths of OpOverload objects.
    Importing their module has to teach Arm's backend how to lower them."""
    debug_info: Literal["JSON", "TOSA"] | None = None
    """Where every TOSA operator comes from in the model: as a JSON report, or inside the TOSA graph that is kept."""
    quantized_inputs: bool = False
    """Whether the program takes integers, without a quantize node on the CPU at its start."""
    quantized_outputs: bool = False
    """Whether the program gives integers, without a dequantization on the CPU at its end."""


def check(device: Device, options: Options) -> Iterator[tuple[str, str]]:
    """What Vela would accept or reject late, and what ExecuTorch would ignore."""
    family = device.accelerator.removeprefix("ethos-").partition("-")[0].upper()
    if device.pass_pipeline.softmax == "MASKED" and family != "U85":
        yield "device.pass_pipeline.softmax", f"an Ethos-{family} has STABLE only: ExecuTorch would drop the choice"
    config = vela_config.read(options.vela_config)
    for name, problem in vela_config.problems(config, options.system_config, options.memory_mode, family):
        yield f"options.{name}", problem
    for option, problem in exclusion(options).problems():
        yield f"options.{option}", problem
    for index, problem in vela_flags.problems(options.extra_flags, family):
        yield f"options.extra_flags.{index}", problem
    for part, tag in (
        ("cmd_data", options.external_block_placements.cmd_data),
        ("weight_data", options.external_block_placements.weight_data),
    ):
        if tag is not None and not re.fullmatch(r"[A-Za-z0-9_-]+", tag):
            message = "names a file: it may have letters, digits, _ and -"
            yield f"options.external_block_placements.{part}", message


def check_build(device: Device, options: Options, build: BuildContext) -> Iterator[tuple[str, str]]:
    """The plugins of the build decide which code may be named, its quantization which integers I/O may have."""
    if device.io_quantization == "int16" and build.scheme.name == "int16x8":
        yield "target.device.io_quantization", "is what int16x8 has anyway; leave it out, or choose uint8"
    for key, paths in ((CHECKS, options.additional_checks), (OPERATORS, options.custom_partition_ops)):
        for index, path in enumerate(paths):
            problem = _import_problem(path, key, build.plugins)
            if problem is not None:
                yield f"{key}.{index}", problem


def _import_problem(path: str, key: str, plugins: Sequence[str]) -> str | None:
    try:
        module, _ = import_paths.split_import_path(path, key, "plugins.my_checks:MyCheck")
        import_paths.check_permitted(path, key, OWN_PACKAGE, plugins)
        if key == OPERATORS:
            signatures.source_file(module, key)
            return None
        accepted = import_paths.parameters(path, key)
    except ConfigurationError as error:
        return str(error).removeprefix(key).removeprefix(": ").strip()
    if accepted is not None and accepted.required:
        return f"requires {', '.join(accepted.required)}, and checks are made without arguments"
    return None


def files(device: Device, options: Options) -> Iterator[Path]:
    """What configuration names and programs depend on."""
    if options.vela_config is not None:
        yield Path(options.vela_config)
    for key, paths in ((CHECKS, options.additional_checks), (OPERATORS, options.custom_partition_ops)):
        for path in paths:
            source = signatures.source_file(path.partition(":")[0], key)
            if source is not None:
                yield source


def exclusion(options: Options) -> Exclusion:
    """What the options keep off the NPU."""
    return Exclusion(
        operators_not_to_delegate=options.operators_not_to_delegate,
        modules_not_to_delegate=options.modules_not_to_delegate,
        nodes_not_to_delegate=options.nodes_not_to_delegate,
    )


def create(**arguments: Any) -> Backend:
    """The backend itself, which imports ExecuTorch."""
    from lowerdeck.backends.ethos_u.backend import EthosU

    return EthosU(**arguments)


def probe_flavor(**flavor: Any) -> FlavorReport:
    """The installed Vela; see contracts.backends.BackendDeclaration."""
    try:
        version = importlib.metadata.version("ethos-u-vela")
    except importlib.metadata.PackageNotFoundError:
        raise LowerdeckError(
            "Vela (Python package ethos-u-vela) is not installed in this environment; `pip install "
            "'executorch[ethos-u]'` brings it"
        ) from None
    converter = Converter(flavor=flavor["flavor"], name="ethos-u-vela", version=version)
    return FlavorReport(converter=converter, targets=get_args(Accelerator))


_UNSUPPORTED_OPTIONS = {
    "target": "is `target.device.accelerator` here",
    "config_ini": "is `target.options.vela_config` here",
    "compile_spec": "has no level of its own here: set its fields, e.g. system_config",
    "dump_intermediate_artifacts_to": "cannot be set: TOSA graphs and Vela's files are always kept, in "
    "build/convert/twins and build/convert/reports, and its path would stand in the `.pte`",
    "dump_debug_info": "is `target.options.debug_info` here",
    "set_pass_pipeline_config": "is `target.device.pass_pipeline` here",
    "register_custom_partition_op": "is `target.options.custom_partition_ops` here",
    "leaky_relu": "cannot be set: quantized, as the NPU needs it, a leaky ReLU is one table whatever stands here",
    "sdpa_safe_softmax_guard": "cannot be set: ExecuTorch finds the guard in float programs only, which the NPU cannot "
    "execute",
    "tosa_spec": "cannot be set: ExecuTorch derives it from the accelerator",
}
_GRANULARITIES = ("backend_default", "per_channel", "per_tensor")
DECLARATION = BackendDeclaration(
    device=Device,
    options=Options,
    schemes={"int8": _GRANULARITIES, "int16x8": _GRANULARITIES},
    mixed_schemes={"int8": ("int8", "int16x8"), "int16x8": ("int8", "int16x8")},
    trainable=("int8",),
    converters=("vela",),
    check=check,
    check_build=check_build,
    files=files,
    create=create,
    probe_flavor=probe_flavor,
    # Of custom operators it matters how they are lowered, too.
    delegation_options=tuple(option.name for option in fields(Options) if option.name != "custom_partition_ops"),
    decomposition_options=("operators_not_to_delegate", "modules_not_to_delegate"),
    unsupported_options=_UNSUPPORTED_OPTIONS,
)
