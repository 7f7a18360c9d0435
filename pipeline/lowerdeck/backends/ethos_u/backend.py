"""Lowers to Arm Ethos-U; imports torch and ExecuTorch inside methods, because composing imports this module."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, get_args

from lowerdeck.backends.ethos_u import vela_config, vela_flags, vela_release
from lowerdeck.backends.ethos_u.options import (
    CHECKS,
    OPERATORS,
    Accelerator,
    Device,
    FlavorOptions,
    Options,
    PassPipeline,
    QuantizeInf,
)
from lowerdeck.compat import arm
from lowerdeck.contracts.backends import Backend, BuildContext, Flavor, FlavorReport, Problems
from lowerdeck.contracts.errors import ConfigurationError
from lowerdeck.contracts.lowering import CompiledPartition, Lowering
from lowerdeck.contracts.quantization import STATIC, QuantizationScheme
from lowerdeck.registry import import_paths, interpreters, signatures

if TYPE_CHECKING:
    from executorch.backends.arm.common.pipeline_config import ArmPassPipelineConfig
    from executorch.backends.arm.ethosu import EthosUCompileSpec
    from torch.export import ExportedProgram
    from torchao.quantization.pt2e.quantizer import Quantizer

OWN_PACKAGE = __name__.rpartition(".")[0].rpartition(".")[0]
"""The project's package whose code import paths may name."""
_UNSUPPORTED_OPTIONS = {
    "target": "is `target.device.accelerator` here",
    "config_ini": "is `target.options.vela_config` here",
    "compile_spec": "is not a section here: set its fields, e.g. system_config",
    "dump_intermediate_artifacts_to": "cannot be set: TOSA graphs and Vela's files are always kept, in "
    "build/convert/twins and build/convert/reports, and its path would be embedded in the `.pte`",
    "dump_debug_info": "is `target.options.debug_info` here",
    "set_pass_pipeline_config": "is `target.device.pass_pipeline` here",
    "register_custom_partition_op": "is `target.options.custom_partition_ops` here",
    "leaky_relu": "cannot be set: the NPU needs a quantized leaky ReLU, which is one table in either case",
    "sdpa_safe_softmax_guard": "cannot be set: ExecuTorch finds the guard only in float programs, which the NPU cannot "
    "execute",
    "tosa_spec": "cannot be set: ExecuTorch derives it from the accelerator",
}
_GRANULARITIES = ("backend_default", "per_channel", "per_tensor")


class EthosU(Backend[Device, Options, FlavorOptions]):
    """Lowers to Arm Ethos-U with ExecuTorch's Arm backend and Vela."""

    name = "ethos_u"
    processor = "npu"
    delegate_id = "EthosUBackend"
    has_command_stream = True
    accepts_fallback = True
    schemes = dict.fromkeys(STATIC, _GRANULARITIES)
    refused_schemes: ClassVar[Mapping[str, str]] = {
        "int8_dynamic": "Arm's quantizer accepts it, and torchao 0.18 then fails to convert the model"
    }
    mixed_schemes = dict.fromkeys(STATIC, STATIC)
    trainable = ("int8",)
    converters = ("vela",)
    extra = "ethos-u"
    extra_modules = ("ethosu", "tosa_serializer", "tosa_reference_model")
    packages: ClassVar[Mapping[str, str]] = {"vela": vela_release.PACKAGE}
    unsupported_options = _UNSUPPORTED_OPTIONS
    # The edge program depends on how custom operators are lowered.
    delegation_options = tuple(
        option.name for option in dataclasses.fields(Options) if option.name != "custom_partition_ops"
    )
    decomposition_options = ("operators_not_to_delegate", "modules_not_to_delegate")

    @property
    def sequences_as_images(self) -> bool:
        """Arm's quantizer has no patterns of poolings over sequences, nor its backend of transposed convolutions."""
        return True

    def check(self) -> Problems:
        """Yield problems that Vela would ignore or report late, and choices that ExecuTorch would ignore."""
        options = self.options
        family = self.device.accelerator.removeprefix("ethos-").partition("-")[0].upper()
        if self.device.pass_pipeline.softmax == "MASKED" and family != "U85":
            yield (
                "device.pass_pipeline.softmax",
                f"an Ethos-{family} has STABLE only: ExecuTorch would ignore the choice",
            )
        for option, problem in options.exclusion_problems():
            yield f"options.{option}", problem
        if self.missing_extra() is None:  # else every build is refused, with the command that installs Vela
            config = vela_config.read(options.vela_config)
            for name, problem in vela_config.problems(config, options.system_config, options.memory_mode, family):
                yield f"options.{name}", problem
            for index, problem in vela_flags.problems(options.extra_flags, family):
                yield f"options.extra_flags.{index}", problem
        for part, tag in dataclasses.asdict(options.external_block_placements).items():
            if tag is not None and not re.fullmatch(r"[A-Za-z0-9_-]+", tag):
                message = "names a file: it may contain letters, digits, _ and -"
                yield f"options.external_block_placements.{part}", message

    def check_build(self, build: BuildContext) -> Problems:
        """Check import paths against the plugins, and I/O quantization against the scheme."""
        if self.device.io_quantization == "int16" and build.scheme.name == "int16x8":
            yield "target.device.io_quantization", "is already what int16x8 uses; leave it out, or choose uint8"
        for key, paths in ((CHECKS, self.options.additional_checks), (OPERATORS, self.options.custom_partition_ops)):
            for index, path in enumerate(paths):
                problem = _import_problem(path, key, build.plugins)
                if problem is not None:
                    yield f"{key}.{index}", problem

    def files(self) -> Iterator[Path]:
        """Yield the vela.ini and the source files of checks and operators."""
        if self.options.vela_config is not None:
            yield Path(self.options.vela_config)
        for key, paths in ((CHECKS, self.options.additional_checks), (OPERATORS, self.options.custom_partition_ops)):
            for path in paths:
                source = signatures.source_file(path.partition(":")[0], key)
                if source is not None:
                    yield source

    @classmethod
    def check_flavor(cls, flavor: Flavor[FlavorOptions], plugins: Sequence[str] = ()) -> Problems:
        """Yield an interpreter that cannot be started or is not opened."""
        python = flavor.options.python
        if python is not None and (problem := interpreters.interpreter_problem(python, plugins)):
            yield "options.python", problem

    @classmethod
    def probe_flavor(cls, flavor: Flavor[FlavorOptions]) -> FlavorReport:
        """Describe the Vela of the flavor."""
        return FlavorReport(converter=vela_release.converter(flavor), targets=get_args(Accelerator))

    def create_quantizer(self, scheme: QuantizationScheme) -> Quantizer:
        """Create an EthosUQuantizer with symmetric weights of 8 or 4 bits, and activations of 8 or 16 bits."""
        from executorch.backends.arm.ethosu import EthosUCompileSpec
        from executorch.backends.arm.quantizer import (
            get_symmetric_a16w8_quantization_config,
            get_symmetric_quantization_config,
            get_uint8_io_quantization_config,
        )
        from executorch.backends.arm.quantizer.arm_quantizer import get_symmetric_a8w4_quantization_config

        from lowerdeck.backends.ethos_u.quantizer import YieldingQuantizer

        configs = {
            "int8": get_symmetric_quantization_config,
            "int8x4": get_symmetric_a8w4_quantization_config,
            "int16x8": get_symmetric_a16w8_quantization_config,
        }
        create_config = partial(configs[scheme.name], is_qat=scheme.is_qat)
        config = create_config(is_per_channel=scheme.weight_granularity != "per_tensor")
        # The quantizer reads only the accelerator and the pass pipeline.
        spec = EthosUCompileSpec(self.device.accelerator)
        chosen = self.device.pass_pipeline
        kept = dataclasses.replace(chosen, quantize_inf=chosen.quantize_inf or _INFINITE)
        spec.set_pass_pipeline_config(_pass_pipeline(kept, spec))
        quantizer: Quantizer = YieldingQuantizer(spec, create_config(is_per_channel=False)).set_global(config)
        if self.device.io_quantization is not None:
            of_type = {"uint8": get_uint8_io_quantization_config, "int16": get_symmetric_a16w8_quantization_config}
            quantizer.set_io(of_type[self.device.io_quantization](is_qat=scheme.is_qat))
        return quantizer

    def lowering(self, program: ExportedProgram) -> Lowering:
        """Return an EthosUPartitioner for this accelerator."""
        from lowerdeck.backends.ethos_u.indices import cast_indices_of_gathers
        from lowerdeck.backends.ethos_u.partitioner import create_partitioner, partition_hooks

        partitioner, reasons = create_partitioner(self._compile_spec(), self.options)
        return Lowering(
            partitioner=partitioner,
            hooks=partition_hooks(self.options),
            finish=cast_indices_of_gathers,
            quantized_inputs=self.options.quantized_inputs,
            quantized_outputs=self.options.quantized_outputs,
            reasons=reasons,
        )

    @contextmanager
    def compiling(self, workdir: Path) -> Iterator[list[CompiledPartition]]:
        """Run Vela for every partition in a separate process and folder; the TOSA graph becomes the host twin."""

        from torch.fx.passes.infra.pass_base import PassResult

        from lowerdeck.backends.concurrent_compilation import concurrent_compilation
        from lowerdeck.backends.ethos_u import vela, vela_layers
        from lowerdeck.backends.ethos_u.activations import exact_fusing
        from lowerdeck.backends.ethos_u.concatenations import complete_concatenations
        from lowerdeck.backends.ethos_u.debug_info import debug_info, debug_reports
        from lowerdeck.backends.ethos_u.handed_on import copy_what_is_handed_on
        from lowerdeck.backends.ethos_u.payload import scratch_bytes
        from lowerdeck.backends.ethos_u.traced_types import quantized_types

        config = vela_config.read(self.options.vela_config)
        compiled: list[CompiledPartition] = []

        def compile_tosa(tosa: bytes, compile_spec: EthosUCompileSpec) -> Any:
            name = f"partition_{len(compiled)}"
            made = vela.compile_tosa(
                tosa,
                compile_spec.compiler_flags,
                config=config,
                system=self.options.system_config,
                placements=compile_spec.external_block_placements.to_block_placements(),
                folder=workdir / name,
                python=vela_release.interpreter(self.flavor.options),
                timeout_s=self.flavor.timeout_s,
            )
            compiled.append(
                CompiledPartition(
                    payload=made.result.processed_bytes,
                    twin=tosa,
                    twin_format="tosa",
                    estimates=made.estimates,
                    layers=vela_layers.layers(made.reports),
                    scratch_bytes=scratch_bytes(made.result.processed_bytes),
                    reports=made.reports | debug_reports(workdir / "debug"),
                )
            )
            return made.result

        with (
            arm.COMPILE_TOSA.active(compile_tosa),
            arm.FUSE_QUANTIZED_ACTIVATION.active(exact_fusing()),
            arm.TRACE_NODE.active(quantized_types()),
            arm.MOVE_BEFORE_CONCATENATION.active(complete_concatenations()),
            arm.ENSURE_UNIQUE_OUTPUTS.active(copy_what_is_handed_on()),
            arm.FUSE_CONSECUTIVE_RESCALES.active(lambda _, graph_module: PassResult(graph_module, modified=False)),
            arm.WIDEN_FOR_SUMS.active(lambda *_: None),
            debug_info(self.options.debug_info, workdir / "debug"),
            # Debug information counts the graphs of all partitions, and has one folder.
            nullcontext() if self.options.debug_info else concurrent_compilation(compiled),
        ):
            yield compiled

    def _compile_spec(self) -> EthosUCompileSpec:
        from executorch.backends.arm.ethosu import EthosUCompileSpec, VelaExternalBlockPlacements

        placements = self.options.external_block_placements
        spec = EthosUCompileSpec(
            self.device.accelerator,
            system_config=self.options.system_config,
            memory_mode=self.options.memory_mode,
            extra_flags=list(self.options.extra_flags),
            config_ini=vela_config.read(self.options.vela_config).flag,
            external_block_placements=VelaExternalBlockPlacements(
                cmd_data=placements.cmd_data, weight_data=placements.weight_data
            ),
        )
        return self._with_pass_pipeline(spec)

    def _with_pass_pipeline(self, spec: EthosUCompileSpec) -> EthosUCompileSpec:
        """Apply the device's pass pipeline to `spec`."""
        if self.device.pass_pipeline != PassPipeline():
            spec.set_pass_pipeline_config(_pass_pipeline(self.device.pass_pipeline, spec))
        return spec


_INFINITE = QuantizeInf(neg_inf=-math.inf, pos_inf=math.inf)
"""Infinities stay, and calibrate sees them: Arm's -256 and 255 take the steps of other values, or win over them."""


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
        return f"requires {', '.join(accepted.required)}, but checks are created without arguments"
    return None


def _pass_pipeline(chosen: PassPipeline, spec: EthosUCompileSpec) -> ArmPassPipelineConfig:
    """The default pipeline of `spec`, with the chosen values."""
    from executorch.backends.arm.common.pipeline_config import ArmPassPipelineConfig

    values = spec._get_pass_pipeline_config().to_dict()
    values |= {name: value for name, value in dataclasses.asdict(chosen).items() if value is not None}
    return ArmPassPipelineConfig.from_dict(values)
