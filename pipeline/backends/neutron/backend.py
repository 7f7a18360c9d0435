"""The Neutron backend behind contracts.Backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import executorch.exir  # noqa: F401  imported first: the quantizer's imports are two seconds quicker after it
import torch

from pipeline.backends.exclusion import excluded_by, mark_before_partition
from pipeline.backends.neutron import DECLARATION, Device, Options, exclusion, sdk
from pipeline.backends.neutron.converter import INSTALLED_SDK, REFERENCE_SDK, ConverterFlavor, describe
from pipeline.backends.neutron.reference.litert import scratch_bytes
from pipeline.contracts import (
    CompiledPartition,
    Converter,
    Lowering,
    QuantizationScheme,
    UnsupportedQuantizationError,
)

if TYPE_CHECKING:
    from executorch.exir import EdgeProgramManager
    from executorch.exir.backend.partitioner import Partitioner, PartitionResult
    from torch.export import ExportedProgram
    from torchao.quantization.pt2e.quantizer import Quantizer

_SDK_MODULES = {"reference": REFERENCE_SDK, "eiq_neutron_sdk": INSTALLED_SDK}


@dataclass(frozen=True, kw_only=True)
class Neutron:
    """Lowers to NXP's Neutron NPU with ExecuTorch's NXP backend, as NXP's own ahead-of-time flow does."""

    name: ClassVar[str] = "neutron"
    device: Device
    options: Options = field(default_factory=Options)
    flavor: str = "reference"
    converter_name: str = "reference"
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
        from executorch.backends.nxp.backend.custom_delegation_options import CustomDelegationOptions
        from executorch.backends.nxp.backend.neutron_target_spec import NeutronTargetSpec
        from executorch.backends.nxp.edge_passes.neutron_edge_pass_manager import NeutronEdgePassManager
        from executorch.backends.nxp.neutron_partitioner import NeutronPartitioner
        from executorch.backends.nxp.nxp_backend import core_aten_ops_exception_list, generate_neutron_compile_spec
        from executorch.exir import EdgeCompileConfig, ExecutorchBackendConfig

        partitioner = NeutronPartitioner(
            generate_neutron_compile_spec(
                self.device.target,
                use_neutron_for_format_conversion=self.options.use_neutron_for_format_conversion,
                fetch_constants_to_sram=self.options.fetch_constants_to_sram,
            ),
            NeutronTargetSpec(self.device.target),
            CustomDelegationOptions(allow_no_op_partitions=self.options.allow_no_op_partitions),
            # Partitioning sees fake tensors; some converters decide by the weights' values.
            post_quantization_state_dict=program.state_dict,
            preserve_ops=[
                torch.ops.aten.prelu.default,
                torch.ops.aten.pad.default,
                torch.ops.aten.hardswish.default,
            ],
        )
        _refuse_marked(partitioner)
        mark_before_partition(partitioner, exclusion(self.options))
        return Lowering(
            partitioner=partitioner,
            transform_passes=NeutronEdgePassManager(),
            edge_config=EdgeCompileConfig(
                _check_ir_validity=False, _core_aten_ops_exception_list=list(core_aten_ops_exception_list)
            ),
            executorch_config=ExecutorchBackendConfig(extract_delegate_segments=False),
            finish=_remove_additional_clusters,
            reasons=_rejections,
        )

    @contextmanager
    def compiling(self, workdir: Path) -> Iterator[list[CompiledPartition]]:
        """Run the converter for every partition in its own process and folder; the LiteRT model is the host twin."""
        sdk.provide_sdk(self._converter_flavor)
        from executorch.backends.nxp.nxp_backend import PayloadComposer

        compiled: list[CompiledPartition] = []
        models: list[bytes] = []
        compose = PayloadComposer.get_binary_payload

        def compose_and_keep(composer: Any, io_formats: Any, neutron_model: bytes) -> bytes:
            payload: bytes = compose(composer, io_formats, neutron_model)
            compiled.append(
                CompiledPartition(
                    payload=payload,
                    twin=models[-1],
                    twin_format="litert",
                    scratch_bytes=scratch_bytes(bytes(neutron_model)),
                )
            )
            return payload

        PayloadComposer.get_binary_payload = compose_and_keep
        try:
            with sdk.converting(
                self._converter_flavor, workdir, lambda tag, litert, neutron, log: models.append(litert)
            ):
                yield compiled
        finally:
            PayloadComposer.get_binary_payload = compose

    def converter(self) -> Converter:
        """The SDK release, or the project's own converter.

        Raises:
            LowerdeckError: the SDK is not installed; says how to get it.
        """
        flavor = self._converter_flavor
        sdk.provide_sdk(flavor)
        return Converter(
            flavor=self.flavor,
            name="lowerdeck-neutron-reference" if flavor.host_only else flavor.sdk_module,
            version=describe(flavor, self.device.target).version,
            host_only=flavor.host_only,
        )

    @property
    def _converter_flavor(self) -> ConverterFlavor:
        return ConverterFlavor(self.flavor, _SDK_MODULES[self.converter_name], timeout_s=self.timeout_s)


def _refuse_marked(partitioner: Partitioner) -> None:
    """Make `partitioner` keep excluded nodes on the CPU, each with the quantize/dequantize cluster that it stands in.

    A cluster is delegated or not by its compute node alone. Without it, what is left of the cluster would neither be
    quantized arithmetic, which the NPU needs, nor be refused.
    """
    from executorch.backends.nxp.neutron_partitioner import NXP_DO_NOT_DELEGATE, QDQClusterRecognizer

    decide = partitioner.partition

    def partition_unmarked(program: ExportedProgram) -> PartitionResult:
        marked = [node for node in program.graph.nodes if excluded_by(node) is not None]
        recognizer = QDQClusterRecognizer()
        if marked:
            recognizer.tag_qdq_clusters(list(program.graph.nodes))
        for node in marked:
            node.meta[NXP_DO_NOT_DELEGATE] = True
            cluster = recognizer.cluster_map.get(node.meta.get("cluster", ""))
            if cluster is not None:
                cluster.compute_node.meta[NXP_DO_NOT_DELEGATE] = True
        return decide(program)

    partitioner.partition = partition_unmarked


def _remove_additional_clusters(manager: EdgeProgramManager) -> EdgeProgramManager:
    """Quantize/dequantize pairs that delegation left around single operators on the CPU, removed as NXP's flow does."""
    from executorch.backends.nxp.edge_passes.neutron_edge_pass_manager import NeutronEdgePassManager
    from executorch.backends.nxp.edge_passes.remove_additional_quantize_dequantize_nodes_pass import (
        RemoveAdditionalQDQClustersPass,
    )

    return manager.transform(NeutronEdgePassManager([RemoveAdditionalQDQClustersPass()]))


@contextmanager
def _rejections() -> Iterator[Callable[[torch.fx.Node], str | None]]:
    """Ask the partitioner's own checks again, in its order, for a node that it did not take."""
    from executorch.backends.nxp import neutron_partitioner

    instances: list[Any] = []
    original = neutron_partitioner.NeutronSupportedOperators

    class Recorded(original):  # type: ignore[misc, valid-type]
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            instances.append(self)

    def reason(node: torch.fx.Node) -> str | None:
        return _reason(instances[-1], neutron_partitioner, node) if instances else None

    neutron_partitioner.NeutronSupportedOperators = Recorded
    try:
        yield reason
    finally:
        neutron_partitioner.NeutronSupportedOperators = original


def _reason(checks: Any, partitioner: Any, node: torch.fx.Node) -> str | None:
    recognizer = partitioner.QDQClusterRecognizer
    cluster = checks.qdq_clusters.get(node.meta.get("cluster"))
    if cluster is not None and any(excluded_by(member) for member in cluster.ops):
        named = ", ".join(sorted(member.name for member in cluster.ops if excluded_by(member)))
        return f"in one quantize/dequantize cluster with {named}, which is excluded"
    if recognizer.is_quant_node(node) or recognizer.is_dequant_node(node) or recognizer.is_auxiliary_node(node):
        return f"follows {cluster.compute_node.name}" if cluster is not None else "in no quantize/dequantize cluster"
    if node.meta.get(partitioner.NXP_DO_NOT_DELEGATE, False):
        return "its partition would have no effect on the NPU, or the operator does not support its partition"
    converter = partitioner.supported_ops.get(node.target)
    if converter is None:
        return "no converter for this operator"
    if not checks._is_node_quantized(node):
        return "not quantized: in no quantize/dequantize cluster"
    arguments = (node, checks.neutron_target_spec, checks.parameters_mapping, checks.custom_delegation_options)
    if not converter.is_supported(*arguments):
        return f"{converter.__name__} does not support these arguments"
    return "supported, but left out by the partitioning"
