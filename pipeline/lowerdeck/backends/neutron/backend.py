"""The Neutron backend behind contracts.Backend."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import executorch.exir  # noqa: F401  imported first: the quantizer's imports are two seconds quicker after it

from lowerdeck.backends.neutron import DECLARATION, Device, FlavorOptions, Options, sdk
from lowerdeck.backends.neutron.converter import Conversion, ConverterFlavor, merge_kernel_selection
from lowerdeck.backends.neutron.flavor import converter_flavor, converter_of
from lowerdeck.backends.neutron.reference.litert import scratch_bytes
from lowerdeck.compat import nxp
from lowerdeck.contracts.converter import Converter
from lowerdeck.contracts.errors import UnsupportedQuantizationError
from lowerdeck.contracts.lowering import CompiledPartition, Lowering
from lowerdeck.contracts.quantization import QuantizationScheme

if TYPE_CHECKING:
    from executorch.exir import EdgeProgramManager
    from torch.export import ExportedProgram
    from torchao.quantization.pt2e.quantizer import Quantizer

KERNEL_SELECTION = "kernel_selection.c"


@dataclass(frozen=True, kw_only=True)
class Neutron:
    """Lowers to NXP's Neutron NPU with ExecuTorch's NXP backend, as NXP's own ahead-of-time flow does."""

    name: ClassVar[str] = "neutron"
    device: Device
    options: Options = field(default_factory=Options)
    flavor: str = "reference"
    converter_name: str = "reference"
    flavor_options: FlavorOptions = field(default_factory=FlavorOptions)
    timeout_s: float = 600.0

    def quantizer(self, scheme: QuantizationScheme) -> Quantizer:
        """NeutronQuantizer for the whole model.

        Raises:
            UnsupportedQuantizationError: any scheme but int8 at the backend's own granularity.
        """
        if scheme.weight_granularity not in DECLARATION.schemes.get(scheme.name, ()):
            raise UnsupportedQuantizationError(
                f"neutron has no quantizer for {scheme.name!r} with {scheme.weight_granularity} weights; "
                "it has: int8 with backend_default"
            )
        sdk.provide_sdk(self._converter_flavor)
        from executorch.backends.nxp.backend.neutron_target_spec import NeutronTargetSpec
        from executorch.backends.nxp.quantizer.neutron_quantizer import NeutronQuantizer

        quantizer: Quantizer = NeutronQuantizer(NeutronTargetSpec(self.device.target), is_qat=scheme.is_qat)
        return quantizer

    def lowering(self, program: ExportedProgram) -> Lowering:
        """NeutronPartitioner with the passes and settings of NXP's flow."""
        sdk.provide_sdk(self._converter_flavor)
        from executorch.backends.nxp.edge_passes.neutron_edge_pass_manager import NeutronEdgePassManager
        from executorch.backends.nxp.nxp_backend import core_aten_ops_exception_list
        from executorch.exir import EdgeCompileConfig, ExecutorchBackendConfig

        from lowerdeck.backends.neutron.leftovers import decompose_remaining
        from lowerdeck.backends.neutron.partitioner import create_partitioner, partition_hooks
        from lowerdeck.backends.neutron.reasons import RejectionRecorder

        partitioner = create_partitioner(self.device, self.options, program.state_dict)
        return Lowering(
            partitioner=partitioner,
            hooks=partition_hooks(self.options),
            transform_passes=NeutronEdgePassManager(),
            edge_config=EdgeCompileConfig(
                _check_ir_validity=False, _core_aten_ops_exception_list=list(core_aten_ops_exception_list)
            ),
            executorch_config=ExecutorchBackendConfig(extract_delegate_segments=False),
            finish=lambda manager: _remove_additional_clusters(decompose_remaining(manager, partitioner.preserve_ops)),
            quantized_inputs=self.options.quantized_inputs,
            quantized_outputs=self.options.quantized_outputs,
            keeps_etrecord=self.options.use_profiling,
            program_reports=self._program_reports,
            reasons=RejectionRecorder().recording,
        )

    @contextmanager
    def compiling(self, workdir: Path) -> Iterator[list[CompiledPartition]]:
        """Run the converter for every partition in its own process and folder; the LiteRT model is the host twin."""
        sdk.provide_sdk(self._converter_flavor)
        compiled: list[CompiledPartition] = []
        conversions: list[tuple[bytes, Conversion]] = []
        compose = nxp.BINARY_PAYLOAD.original()

        def compose_and_keep(composer: Any, io_formats: Any, neutron_model: bytes) -> bytes:
            payload: bytes = compose(composer, io_formats, neutron_model)
            litert, conversion = conversions[-1]
            compiled.append(
                CompiledPartition(
                    payload=payload,
                    twin=litert,
                    twin_format="litert",
                    scratch_bytes=scratch_bytes(conversion.model),
                    reports=_reports(conversion),
                )
            )
            return payload

        with (
            nxp.BINARY_PAYLOAD.active(compose_and_keep),
            sdk.intercept_conversion(
                self._converter_flavor,
                workdir,
                lambda tag, litert, conversion: conversions.append((litert, conversion)),
                self.options.extra_flags,
            ),
        ):
            yield compiled

    def converter(self) -> Converter:
        """The converter release that the flavor reaches, with the properties of the target that it states.

        Raises:
            LowerdeckError: it is not installed; says how to get it.
        """
        flavor = self._converter_flavor
        return converter_of(flavor, sdk.describe_cached(flavor, self.device.target))

    def _program_reports(self, partitions: Sequence[CompiledPartition], workdir: Path) -> dict[str, bytes]:
        """One kernel selection for the program, where the partitions have some."""
        selections = [
            reports[KERNEL_SELECTION] for reports in (p.reports for p in partitions) if KERNEL_SELECTION in reports
        ]
        if not selections:
            return {}
        flavor = self._converter_flavor
        found = sdk.describe_cached(flavor, self.device.target)
        if found.merges_kernel_selection:
            return {KERNEL_SELECTION: merge_kernel_selection(flavor, selections, workdir / "kernel_selection")}
        if len(selections) == 1:
            return {KERNEL_SELECTION: selections[0]}
        statement = (
            f"{flavor.sdk_module} {found.version} has no merge_kernel_selection_files. The firmware needs the kernels "
            f"of all {len(selections)} files partition_*/kernel_selection.c in this folder.\n"
        )
        return {"kernel_selection.txt": statement.encode()}

    @property
    def _converter_flavor(self) -> ConverterFlavor:
        return converter_flavor(self.flavor, self.converter_name, self.flavor_options, self.timeout_s)


def _reports(conversion: Conversion) -> dict[str, bytes]:
    """What ExecuTorch would leave in `intermediates_dir` beside the twin, and the kernels that the partition needs."""
    reports = {"neutron.tflite": conversion.model}
    if conversion.kernel_selection is not None:
        reports[KERNEL_SELECTION] = conversion.kernel_selection
    return reports


def _remove_additional_clusters(manager: EdgeProgramManager) -> EdgeProgramManager:
    """Quantize/dequantize pairs that delegation left around single operators on the CPU, removed as NXP's flow does."""
    from executorch.backends.nxp.edge_passes.neutron_edge_pass_manager import NeutronEdgePassManager
    from executorch.backends.nxp.edge_passes.remove_additional_quantize_dequantize_nodes_pass import (
        RemoveAdditionalQDQClustersPass,
    )

    return manager.transform(NeutronEdgePassManager([RemoveAdditionalQDQClustersPass()]))
