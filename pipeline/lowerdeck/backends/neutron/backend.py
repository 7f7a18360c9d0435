"""Lowers to NXP's Neutron NPU; imports torch and ExecuTorch inside methods, because composing imports this module."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from lowerdeck.backends.neutron import flavor as flavors
from lowerdeck.backends.neutron import sdk
from lowerdeck.backends.neutron.converter import Conversion, ConverterFlavor, merge_kernel_selection
from lowerdeck.backends.neutron.options import CHECK, Device, FlavorOptions, Options
from lowerdeck.backends.neutron.reference.litert import scratch_bytes
from lowerdeck.compat import nxp
from lowerdeck.contracts.backends import Backend, BuildContext, Flavor, FlavorReport, Problems
from lowerdeck.contracts.converter import Converter
from lowerdeck.contracts.errors import ConfigurationError
from lowerdeck.contracts.lowering import CompiledPartition, Lowering
from lowerdeck.contracts.quantization import QuantizationScheme
from lowerdeck.delegation.exclusion import is_operator_name
from lowerdeck.registry import import_paths, signatures
from lowerdeck.runtime.waiting import work_while_waiting

if TYPE_CHECKING:
    import torch
    from executorch.exir import EdgeProgramManager
    from torch.export import ExportedProgram
    from torchao.quantization.pt2e.quantizer import Quantizer

KERNEL_SELECTION = "kernel_selection.c"
_OWN_OPTIONS = {
    "fetchConstantsToSRAM": "target.options.fetch_constants_to_sram",
    "dumpKernelSelectionCode": "target.options.dump_kernel_selection_code",
    "useProfiling": "target.options.use_profiling",
    "dumpAfterImport": "target.options.use_profiling, which sets it",
    "dumpAfterGenerate": "target.options.use_profiling, which sets it",
    "verbose": "target.options.use_profiling, which sets it",
}
_UNSUPPORTED_OPTIONS = {
    "config": "is `target.device.target` here",
    "system_config": "is accepted by ExecuTorch and never read; leave it out",
    "neutron_converter_flavor": "is an option group here: choose the converter with `flavor` in params.yaml",
    "converter_flavor": "is an option group here: choose the converter with `flavor` in params.yaml",
    "intermediates_dir": "cannot be set: its files are always stored in build/convert/twins and build/convert/reports, "
    "and its path would be embedded in the `.pte`",
    "post_quantization_state_dict": "cannot be set: the quantized program's own is always passed",
    "custom_delegation_options": "is not a section here: set its fields, e.g. allow_no_op_partitions",
}


class Neutron(Backend[Device, Options, FlavorOptions]):
    """Lowers to NXP's Neutron NPU with ExecuTorch's NXP backend, as NXP's own ahead-of-time flow does."""

    name = "neutron"
    processor = "npu"
    delegate_id = "NeutronBackend"
    has_command_stream = True
    accepts_fallback = True
    # Convolutions are quantized per channel and linear layers per tensor; the quantizer offers no choice.
    schemes = {"int8": ("backend_default",)}
    trainable = ("int8",)
    converters = ("reference", "eiq_neutron_sdk", "neutron_converter")
    extra = "neutron"
    extra_modules = ("ai_edge_litert",)  # executes the host twins
    device_converter = (
        "pip install --index-url ADDRESS eiq-neutron-sdk==3.2.0, with the address that NXP gives you, and `flavor: "
        "eiq_neutron_sdk` in params.yaml (docs/sdk_day.md)"
    )
    packages: ClassVar[Mapping[str, str]] = {"eiq_neutron_sdk": "eiq-neutron-sdk"}
    unsupported_options = _UNSUPPORTED_OPTIONS
    # These two preserve operators in the program, whichever nodes are delegated.
    delegation_options = tuple(
        option.name for option in fields(Options) if option.name not in ("preserve_ops", "check_op_support")
    )

    def check(self) -> Problems:
        """Yield malformed values, and converter flags that have their own option."""
        for option, message in self.options.exclusion_problems():
            yield f"options.{option}", message
        for name in self.options.preserve_ops:
            if not is_operator_name(name):
                yield (
                    "options.preserve_ops",
                    f"{name!r} is not an operator: write `aten::hardswish` or `aten.hardswish.default`",
                )
        for flag, value in self.options.extra_flags.items():
            if not isinstance(value, (bool, int, float, str)):
                yield "options.extra_flags", f"{flag} has to be true, false, a number or a string"
            elif flag in _OWN_OPTIONS:
                yield "options.extra_flags", f"{flag} has its own option: {_OWN_OPTIONS[flag]}"
            elif not flag.isidentifier():
                yield "options.extra_flags", f"{flag!r} is not an attribute name such as useSequencer"

    def check_build(self, build: BuildContext) -> Problems:
        """Check the import path against the plugins of the build."""
        path = self.options.check_op_support
        if path is None:
            return
        try:
            import_paths.split_import_path(path, CHECK, "plugins.my_checks:keeps_whole")
            import_paths.check_permitted(path, CHECK, __package__, build.plugins)
            accepted = import_paths.parameters(path, CHECK)
        except ConfigurationError as error:
            yield CHECK, str(error).removeprefix(CHECK).removeprefix(": ").strip()
            return
        if accepted is not None and len(accepted.required) != 1:
            yield CHECK, f"requires {', '.join(accepted.required) or 'nothing'}, but is called with a single node"

    def files(self) -> Iterator[Path]:
        """Yield the source file of the check, if there is one."""
        if self.options.check_op_support is not None:
            source = signatures.source_file(self.options.check_op_support.partition(":")[0], CHECK)
            if source is not None:
                yield source

    @classmethod
    def check_flavor(cls, flavor: Flavor[FlavorOptions], plugins: Sequence[str] = ()) -> Problems:
        """Yield paths that cannot be reached or are not opened, and options that would be ignored."""
        return flavors.problems(flavor, plugins)

    @classmethod
    def missing_converter(cls, flavor: Flavor[FlavorOptions]) -> str | None:
        """Look for the package of the release."""
        return flavors.missing(flavor)

    @classmethod
    def probe_flavor(cls, flavor: Flavor[FlavorOptions]) -> FlavorReport:
        """Ask the converter in a separate process."""
        return flavors.probe(flavor)

    def create_quantizer(self, scheme: QuantizationScheme) -> Quantizer:
        """Create NXP's quantizer for the whole model."""
        sdk.provide_sdk(self._converter_flavor)
        from executorch.backends.nxp.backend.neutron_target_spec import NeutronTargetSpec

        from lowerdeck.backends.neutron.quantizer import SeparatingQuantizer

        quantizer: Quantizer = SeparatingQuantizer(NeutronTargetSpec(self.device.target), is_qat=scheme.is_qat)
        return quantizer

    def lowering(self, program: ExportedProgram) -> Lowering:
        """Return a NeutronPartitioner with the passes and settings of NXP's flow."""
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
            finish=lambda manager: self._finish(decompose_remaining(manager, partitioner.preserve_ops)),
            quantized_inputs=self.options.quantized_inputs,
            quantized_outputs=self.options.quantized_outputs,
            keeps_etrecord=self.options.use_profiling,
            program_reports=self._program_reports,
            reasons=RejectionRecorder().recording,
        )

    @contextmanager
    def compiling(self, workdir: Path) -> Iterator[list[CompiledPartition]]:
        """Run the converter for every partition in its own process and folder; LiteRT models are the host twins."""
        sdk.provide_sdk(self._converter_flavor)
        from lowerdeck.backends.concurrent_compilation import concurrent_compilation
        from lowerdeck.backends.neutron.redirection import complete_redirection
        from lowerdeck.backends.neutron.twin import import_litert

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

        intercepted = sdk.intercept_conversion(
            self._converter_flavor,
            workdir,
            lambda tag, litert, conversion: conversions.append((litert, conversion)),
            self.options.extra_flags,
        )
        redirecting = nxp.REDIRECT_TENSOR.active(complete_redirection())
        composing, compiling = nxp.BINARY_PAYLOAD.active(compose_and_keep), concurrent_compilation(compiled)
        with composing, redirecting, intercepted, compiling, work_while_waiting(import_litert):
            yield compiled

    def converter(self) -> Converter:
        """Return the converter of the flavor, with the properties of the target that it reports.

        Raises:
            LowerdeckError: it is not installed; the message describes how to install it.
        """
        flavor = self._converter_flavor
        return flavors.converter_of(flavor, sdk.describe_cached(flavor, self.device.target))

    def _finish(self, manager: EdgeProgramManager) -> EdgeProgramManager:
        """NXP's last pass, except above CMSIS-NN, which takes the quantize and dequantize nodes that it removes."""
        return manager if self.fallback is not None else _remove_additional_clusters(manager)

    def _program_reports(self, partitions: Sequence[CompiledPartition], workdir: Path) -> dict[str, bytes]:
        """Return one kernel selection for the program, if the partitions have any."""
        reports = [partition.reports for partition in partitions]
        selections = [each[KERNEL_SELECTION] for each in reports if KERNEL_SELECTION in each]
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
        return flavors.converter_flavor(self.flavor)


def _reports(conversion: Conversion) -> dict[str, bytes]:
    """The converted model, which ExecuTorch would write to `intermediates_dir`, and the partition's kernels."""
    reports = {"neutron.tflite": conversion.model}
    if conversion.kernel_selection is not None:
        reports[KERNEL_SELECTION] = conversion.kernel_selection
    return reports


def _remove_additional_clusters(manager: EdgeProgramManager) -> EdgeProgramManager:
    """Remove quantize/dequantize pairs around single operators on the CPU, as NXP's flow does."""
    from executorch.backends.nxp.edge_passes.neutron_edge_pass_manager import NeutronEdgePassManager
    from executorch.backends.nxp.edge_passes.remove_additional_quantize_dequantize_nodes_pass import (
        RemoveAdditionalQDQClustersPass,
    )

    _dequantize_for_others(manager.exported_program().graph)
    return manager.transform(NeutronEdgePassManager([RemoveAdditionalQDQClustersPass()]))


def _dequantize_for_others(graph: torch.fx.Graph) -> None:
    """Give a dequantize node to those that read a cluster's from outside of it.

    When NXP's pass removes a cluster, they would read integers instead: the write of a state, for example.
    """
    from executorch.backends.nxp.neutron_partitioner import QDQClusterRecognizer

    recognizer = QDQClusterRecognizer()
    recognizer.tag_qdq_clusters(list(graph.nodes))
    for cluster in recognizer.cluster_map.values():
        for node in filter(recognizer.is_dequant_node, cluster.ops):
            outside = [user for user in node.users if user not in cluster.ops]
            if outside and len(outside) < len(node.users):
                with graph.inserting_after(node):
                    other = graph.node_copy(node)
                for user in outside:
                    user.replace_input_with(node, other)
