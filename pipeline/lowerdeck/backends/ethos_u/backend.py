"""The Ethos-U backend behind contracts.Backend."""

from __future__ import annotations

import dataclasses
import importlib.metadata
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import executorch.exir  # noqa: F401  imported first: the quantizer's imports are two seconds quicker after it
from executorch.backends.arm.common.pipeline_config import ArmPassPipelineConfig
from executorch.backends.arm.ethosu import EthosUCompileSpec, VelaExternalBlockPlacements

from lowerdeck.backends.ethos_u import DECLARATION, Device, Options, PassPipeline, vela, vela_config
from lowerdeck.backends.ethos_u.debug_info import debug_info, debug_reports
from lowerdeck.backends.ethos_u.partitioner import create_partitioner, partition_hooks
from lowerdeck.backends.ethos_u.payload import scratch_bytes
from lowerdeck.backends.ethos_u.vela_config import VelaConfig
from lowerdeck.compat import arm
from lowerdeck.contracts.converter import Converter
from lowerdeck.contracts.errors import UnsupportedQuantizationError
from lowerdeck.contracts.lowering import CompiledPartition, Lowering
from lowerdeck.contracts.quantization import QuantizationScheme

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torchao.quantization.pt2e.quantizer import Quantizer


@dataclass(frozen=True, kw_only=True)
class EthosU:
    """Lowers to Arm Ethos-U with ExecuTorch's Arm backend and Vela."""

    name: ClassVar[str] = "ethos_u"
    device: Device
    options: Options | None = None
    flavor: str = "vela"
    converter_name: str = "vela"
    timeout_s: float = 600.0

    def quantizer(self, scheme: QuantizationScheme) -> Quantizer:
        """EthosUQuantizer with symmetric 8-bit weights, and activations of 8 or 16 bits, for the whole model.

        Raises:
            UnsupportedQuantizationError: a scheme or granularity that the NPU has no arithmetic for.
        """
        from executorch.backends.arm.quantizer import (
            get_symmetric_a16w8_quantization_config,
            get_symmetric_quantization_config,
            get_uint8_io_quantization_config,
        )

        from lowerdeck.backends.ethos_u.quantizer import YieldingQuantizer

        if scheme.weight_granularity not in DECLARATION.schemes.get(scheme.name, ()):
            raise UnsupportedQuantizationError(
                f"ethos_u has no quantizer for {scheme.name!r} with {scheme.weight_granularity} weights; it has: "
                f"{', '.join(DECLARATION.schemes)}"
            )
        configs = {"int8": get_symmetric_quantization_config, "int16x8": get_symmetric_a16w8_quantization_config}
        config = configs[scheme.name](is_per_channel=scheme.weight_granularity != "per_tensor", is_qat=scheme.is_qat)
        quantizer: Quantizer = YieldingQuantizer(self._compile_spec()).set_global(config)
        if self.device.io_quantization is not None:
            of_type = {"uint8": get_uint8_io_quantization_config, "int16": get_symmetric_a16w8_quantization_config}
            quantizer.set_io(of_type[self.device.io_quantization](is_qat=scheme.is_qat))
        return quantizer

    def lowering(self, program: ExportedProgram) -> Lowering:
        """EthosUPartitioner for this accelerator."""
        options = self._chosen()
        partitioner, reasons = create_partitioner(self._compile_spec(), options)
        return Lowering(
            partitioner=partitioner,
            hooks=partition_hooks(options),
            quantized_inputs=options.quantized_inputs,
            quantized_outputs=options.quantized_outputs,
            reasons=reasons,
        )

    @contextmanager
    def compiling(self, workdir: Path) -> Iterator[list[CompiledPartition]]:
        """Run Vela for every partition in a process and folder of its own; the TOSA graph becomes the host twin."""
        options, config = self._chosen(), self._vela_config()
        compiled: list[CompiledPartition] = []

        def compile_tosa(tosa: bytes, compile_spec: EthosUCompileSpec) -> Any:
            name = f"partition_{len(compiled)}"
            made = vela.compile_tosa(
                tosa,
                compile_spec.compiler_flags,
                config=config,
                system=options.system_config,
                placements=compile_spec.external_block_placements.to_block_placements(),
                folder=workdir / name,
                timeout_s=self.timeout_s,
            )
            compiled.append(
                CompiledPartition(
                    payload=made.result.processed_bytes,
                    twin=tosa,
                    twin_format="tosa",
                    estimates=made.estimates,
                    scratch_bytes=scratch_bytes(made.result.processed_bytes),
                    reports=made.reports | debug_reports(workdir / "debug"),
                )
            )
            return made.result

        with arm.COMPILE_TOSA.active(compile_tosa), debug_info(options.debug_info, workdir / "debug"):
            yield compiled

    def converter(self) -> Converter:
        """The installed Vela."""
        return Converter(flavor=self.flavor, name="ethos-u-vela", version=importlib.metadata.version("ethos-u-vela"))

    def _chosen(self) -> Options:
        assert self.options is not None, "lowering needs target.options"
        return self.options

    def _vela_config(self) -> VelaConfig:
        return vela_config.read(self._chosen().vela_config)

    def _compile_spec(self) -> EthosUCompileSpec:
        if self.options is None:  # the quantizer looks at the accelerator only, the rest are the class's own defaults
            spec = EthosUCompileSpec(self.device.accelerator)
        else:
            spec = EthosUCompileSpec(
                self.device.accelerator,
                system_config=self.options.system_config,
                memory_mode=self.options.memory_mode,
                extra_flags=list(self.options.extra_flags),
                config_ini=self._vela_config().flag,
                external_block_placements=VelaExternalBlockPlacements(
                    cmd_data=self.options.external_block_placements.cmd_data,
                    weight_data=self.options.external_block_placements.weight_data,
                ),
            )
        if self.device.pass_pipeline != PassPipeline():
            spec.set_pass_pipeline_config(_pass_pipeline(self.device.pass_pipeline, spec))
        return spec


def _pass_pipeline(chosen: PassPipeline, spec: EthosUCompileSpec) -> ArmPassPipelineConfig:
    """What `spec` would have by itself, with what is chosen put into it."""
    values = spec._get_pass_pipeline_config().to_dict()
    values |= {name: value for name, value in dataclasses.asdict(chosen).items() if value is not None}
    return ArmPassPipelineConfig.from_dict(values)
